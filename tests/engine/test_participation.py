"""Who takes part in a round: distinct clients, by the rule; those who drop out are as if they had not been drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, Given, assert_close, cases, check, one_line, run_at_once
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import MOON, FedAvg, FedMR, Participation, Scaffold, engine
from fedjax_collapse.run.runs import prepare
from fedjax_collapse.run.simulation import Hardware, Run, Schedule, simulate_runs

pytestmark = pytest.mark.slow


def run(federation, model, algorithm, participation, rounds=3, **options):
    return run_at_once(federation, model, algorithm, rounds, participation=participation, **options)


@settings(max_examples=40, deadline=None)
@given(
    num_clients=st.integers(1, 12),
    fraction=st.floats(0.01, 1),
    sampler=st.sampled_from([engine.Uniform, engine.BySize, engine.Available]),
    chance=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_cohorts_are_distinct_and_never_empty(num_clients, fraction, sampler, chance, seed):
    sampler = sampler(1 - chance) if sampler is engine.Available else sampler()
    rule = Participation(fraction, sampler, dropout=chance, stragglers=chance, upload_loss=chance)
    key, sizes = jax.random.key(seed), jnp.arange(1, num_clients + 1)
    cohort_size = rule.cohort_size(num_clients)
    drawn = rule.draw(key, sizes, cohort_size)
    assert drawn.shape == (cohort_size,)
    left = np.asarray(rule.survivors(key, drawn, num_clients))
    real = left[left < num_clients]
    assert len(set(real.tolist())) == len(real) >= 1
    assert set(real.tolist()) <= set(np.asarray(drawn).tolist())
    assert len(real) == 1 or chance < 1
    if chance == 0:
        assert len(real) == cohort_size
    budgets = np.asarray(rule.budgets(key, drawn, num_clients))
    assert set(budgets.tolist()) <= {0.5, 1.0} and (chance not in (0, 1) or set(budgets) == {1 - chance / 2})
    arrives = np.asarray(rule.arrivals(key, jnp.asarray(left), num_clients))
    assert set(left[arrives].tolist()) <= set(real.tolist()) and arrives.any()
    assert arrives.sum() == (1 if chance == 1 else len(real)) or 0 < chance < 1


def frequencies(rule, sizes, rounds=3000):
    def draw(round):
        key = jax.random.fold_in(jax.random.key(0), round)
        return rule.survivors(key, rule.draw(key, sizes, rule.cohort_size(len(sizes))), len(sizes))

    cohorts = np.asarray(jax.vmap(draw)(jnp.arange(rounds))).ravel()
    return np.bincount(cohorts, minlength=len(sizes) + 1)[: len(sizes)] / rounds


def test_frequencies_are_those_of_the_rule():
    for rule, expected in (
        (Participation(0.25, engine.BySize()), [0.1, 0.2, 0.3, 0.4]),
        (Participation(0.5), 0.5),
        (Participation(1.0, dropout=0.3), 0.7),
        (available(jnp.array([0.2, 0.5, 0.9, 1.0])), [0.2, 0.5, 0.9, 1.0]),
    ):
        np.testing.assert_allclose(frequencies(rule, jnp.array([10, 20, 30, 40])), expected, atol=0.04)


def test_what_happens_to_a_client_is_drawn_one_by_one():
    """Of the survivors as many fall behind and are lost as of all, and lost are as many of the stragglers."""
    rule = Participation(dropout=0.3, stragglers=0.3, upload_loss=0.3)

    def draw(round):
        key = jax.random.fold_in(jax.random.key(0), round)
        cohort = rule.survivors(key, jnp.arange(50), 50)
        return cohort < 50, rule.budgets(key, cohort, 50) < 1, rule.arrivals(key, cohort, 50)

    survives, falls_behind, arrives = map(np.asarray, jax.vmap(draw)(jnp.arange(300)))
    assert not (arrives & ~survives).any()
    shares = [arrives.mean(), falls_behind[survives].mean(), arrives[survives & falls_behind].mean()]
    np.testing.assert_allclose(shares, [0.49, 0.3, 0.7], atol=0.03)


def test_a_client_that_drops_out_is_as_one_outside_the_cohort(float64, federation, network):
    """Weights, states of clients and of the server: those of a run whose cohorts are the survivors."""
    algorithm = FedAvg(TRAINING, {"scaffold": Scaffold(), "fedmr": FedMR(), "moon": MOON()})
    rule = Participation(dropout=0.5)
    result = run(federation, network, algorithm, rule, rounds=1)
    took_part = result.clients["steps"][0] > 0
    assert 1 <= took_part.sum() < 5

    rule = Given(fraction=took_part.mean(), cohort=jnp.asarray(np.flatnonzero(took_part)))
    expected = run(federation, network, algorithm, rule, rounds=1)
    assert_close(result.variables, expected.variables, 1e-12)
    assert_close(result.state.clients, expected.state.clients, 1e-12)
    assert_close(result.state.server.shared, expected.state.server.shared, 1e-12)


def test_stragglers_take_a_share_of_their_steps(federation, network):
    rule = Participation(stragglers=1.0, straggler_share=0.4)
    result = run(federation, network, FedAvg(TRAINING.replace(epochs=2)), rule, rounds=1)
    assert result.clients["steps"][0].tolist() == [max(1, int(0.4 * 2 * n)) for n in (3, 1, 5, 3, 3)]
    samples = [min(8 * int(0.4 * 2 * n), size) for n, size in zip((3, 5, 3, 3), (23, 40, 21, 19), strict=True)]
    assert result.timing[0]["samples"] == sum(samples) + 7


def available(*arguments, **options):
    return Participation(sampler=engine.Available(*arguments, **options))


def timed(*arguments, **options):
    return Participation(clock=engine.Clock(*arguments, **options))


@cases(
    (Participation(sampler="size"), "sampler 'size': expected Uniform, got str"),
    (Participation(dropout=1.5), r"dropout 1.5 is outside \[0, 1\]"),
    (Participation(straggler_share=0.3), "straggler_share 0.3 without stragglers, expected both"),
    (available(period=1), "Available: period 1 is too small, expected"),
    (available(period=np.array([3.5, 4])), r"period array.* expected int, got an"),
    (available(2.0), r"Available: probability is outside \[0, 1\]"),
    (available(jnp.ones(3)), "probability of 3 clients, expected one or 5"),
    (Participation(clock=1.0), "clock 1: expected Clock"),
    (timed(jnp.ones(3)), "step_seconds of 3 clients, expected one or 5"),
    (timed(np.full(5, np.inf)), "Clock: step_seconds is not finite"),
    (Participation(sampler=engine.BySize()), "by_size with weighting 'size': sizes would count twice"),
)
def test_wrong_rules(rule, message, federation, network):
    check(message, run, federation, network, FedAvg(TRAINING), rule)


@cases(4, 2**31 - 1)
def test_more_at_once_than_there_are(at_once, federation, network):
    message = f"client_map: {at_once} at a time on a device: expected at most 3, the clients of a round"
    for client_map in (engine.Chunked(at_once), engine.Sharded(2, engine.Chunked(at_once))):
        check(message, run, federation, network, FedAvg(TRAINING), 0.6, client_map=client_map)
    runs = [Run(federation, FedAvg(TRAINING), jax.random.key(seed)) for seed in range(3)]
    with one_line(f"run_map: {at_once} at a time on a device: expected at most 3, the runs"):
        simulate_runs(runs, network, Schedule(1), Hardware(run_map=engine.Chunked(at_once)))


def test_everybody_has_a_day_of_their_own():
    """Half of each period without a break, rounded up; the same in every period, not the same for all."""
    for period, day in ((6, 3), (5, 3), (2, 1)):
        rule = engine.Available(0.5, period)
        probabilities = np.array([rule.in_round(jax.random.key(0), r, 200).probability for r in range(2 * period)])
        assert set(probabilities.ravel().tolist()) == {0.0, 0.5}
        is_day = probabilities > 0
        np.testing.assert_array_equal(is_day[:period], is_day[period:])
        assert (is_day[:period].sum(axis=0) == day).all()
        assert (np.diff(is_day, axis=0)[:period].sum(axis=0) == 2).all()  # one morning, one evening
        assert abs(is_day.mean(axis=1) - day / period).max() < 0.15


def test_cohorts_are_of_those_whose_day_it_is(federation, network):
    rule = Participation(1.0, engine.Available(period=4))
    result = run(federation, network, FedAvg(TRAINING), rule, rounds=8)
    took_part = result.clients["steps"] > 0
    key = jax.random.split(jax.random.key(0))[1]
    is_day = np.array([rule.sampler.in_round(key, r, 5).probability for r in range(8)]) > 0
    crowded = is_day.any(axis=1)
    np.testing.assert_array_equal(took_part[crowded], is_day[crowded])
    assert (took_part[~crowded].sum(axis=1) == 1).all() and not took_part.all(axis=1).any()


def test_rules_of_other_classes_are_other_programs(federation, network):
    """Although JAX takes dataclasses of other classes, with equal fields, for equal."""
    algorithm = FedAvg(weighting="equal")
    by_size, uniform = (Participation(0.5, sampler) for sampler in (engine.BySize(), engine.Uniform()))
    run = Run(federation, algorithm, jax.random.key(0))
    assert prepare(run, network, Schedule(1, by_size)) != prepare(run, network, Schedule(1, uniform))
    assert prepare(run, network, Schedule(1, uniform)) == prepare(run, network, Schedule(1, Participation(0.5)))


def test_watching(federation, network):
    """One, all of the cohort, or some; they are the clients' models after training, whatever the layout."""

    def watched(watch, **options):
        seen = []
        keep = {"keep": lambda view: seen.append(dict(view.local)) or 0}
        result = run(federation, network, FedAvg(TRAINING), 0.6, watch=watch, measurements=keep, **options)
        return seen, result

    everyone, result = watched("all")
    members = [np.flatnonzero(row).tolist() for row in result.clients["steps"]]
    assert [sorted(models) for models in everyone] == members
    one, _ = watched("one")
    assert [list(models) for models in one] == [row[:1] for row in members]
    some, result = watched((0, 4))
    assert [sorted(models) for models in some] == [[i for i in row if i in (0, 4)] for row in members]
    for models, row in zip(some, result.metrics, strict=True):
        assert models or np.isnan(row["R"])
    sharded, _ = watched("all", client_map=engine.Sharded(2, engine.Chunked(2)))
    for models, expected in zip(sharded, everyone, strict=True):
        for client, model in models.items():
            assert_close(model.variables, expected[client].variables, 1e-5)
    for wrong in ("some", (), (5,), (-1,)):
        with one_line(r"watch .*: expected one, all, or a tuple of identities from 0 to 4"):
            run(federation, network, FedAvg(TRAINING), 0.6, watch=wrong)
