"""Cohorts of clients that are drawn independently: how many, whom, and rounds without any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_close, assert_same_bits, one_line, run_at_once
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import DPFedAvg, FedAvg, Participation, engine
from fedjax_collapse.core import masks


def cohort(rule, num_clients, round=0):
    key, sizes = jax.random.fold_in(jax.random.key(5), round), jnp.ones(num_clients, int)
    return np.asarray(rule.draw(key, sizes, rule.cohort_size(num_clients)))


@settings(max_examples=20, deadline=None)
@given(
    num_clients=st.sampled_from([1, 7, 40]),  # few shapes are compiled
    fraction=st.floats(1e-3, 1),
    limit=st.sampled_from([1, 3]),
    round=st.integers(0, 99),
)
def test_cohorts(num_clients, fraction, limit, round):
    """Of distinct clients and padding, as many as there is room for; a smaller limit leaves out some of the same."""
    rules = (Participation(fraction, engine.Poisson(most)) for most in (num_clients, limit))
    whole, cut = (cohort(rule, num_clients, round) for rule in rules)
    drawn, left = set(whole[whole < num_clients].tolist()), cut[cut < num_clients].tolist()
    assert len(whole) == num_clients and len(cut) == min(num_clients, limit)
    assert set(left) <= drawn and len(left) == len(set(left)) == min(len(drawn), len(cut))
    assert fraction < 1 or len(drawn) == num_clients
    more = cohort(Participation(min(1, 1.5 * fraction), engine.Poisson(num_clients)), num_clients, round)
    assert drawn <= set(more.tolist())  # of a larger fraction, with the same key


def test_places():
    """The mean and five of its roots, unless there are fewer clients or another limit."""
    assert Participation(0.02, engine.Poisson()).cohort_size(1000) == 43  # 20 + 5 * 4.47
    assert Participation(0.5, engine.Poisson()).cohort_size(10) == 10
    assert Participation(0.02, engine.Poisson(30)).cohort_size(1000) == 30


def test_groups_take_part_in_turn():
    rule, sizes, drawn = Participation(0.2, engine.Poisson(limit=9, groups=3)), jnp.ones(9, int), []
    for round in range(300):
        key = jax.random.key(round)
        in_round = rule.in_round(key, jnp.array(round), 9)
        cohort = np.asarray(in_round.draw(key, sizes, 9))
        drawn.append(cohort[cohort < 9])
        assert (drawn[-1] % 3 == round % 3).all()
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn), minlength=9) / 100, 0.6, atol=0.25)
    with one_line(r"fraction 0.5 in a round, from one of 3 groups: expected at most 0.333"):
        Participation(0.5, engine.Poisson(groups=3)).cohort_size(9)


def test_frequencies():
    """Numbers of clients are binomial; of those beyond the limit each is as likely to be left out."""
    num_clients, rounds = 30, 4000
    rule = Participation(0.2, engine.Poisson(limit=4))
    keys = jax.random.split(jax.random.key(1), rounds)

    def drawn(limit):
        rule = Participation(0.2, engine.Poisson(limit))
        sizes = jnp.ones(num_clients, int)
        return np.asarray(jax.jit(jax.vmap(lambda key: rule.draw(key, sizes, rule.cohort_size(num_clients))))(keys))

    counts = (drawn(30) < num_clients).sum(axis=1)
    assert counts.mean() == pytest.approx(6, abs=5 * np.sqrt(4.8 / rounds))
    assert counts.var() == pytest.approx(4.8, rel=0.15) and counts.min() == 0
    each = np.bincount(drawn(4).ravel(), minlength=31)[:30] / rounds
    expected = np.minimum(counts, 4).mean() / num_clients
    np.testing.assert_allclose(each, expected, atol=5 * np.sqrt(expected / rounds))
    assert rule.expected_size(num_clients) == 6 and rule.cohort_size(num_clients) == 4


def test_nobody_may_return():
    """Neither a drop-out nor a lost upload is taken back, as with other samplers, where the others decide on that."""
    for sampler, least in ((engine.Poisson(), 0), (engine.Uniform(), 1)):
        rule = Participation(1.0, sampler, dropout=1.0, upload_loss=1.0)
        drawn = jnp.arange(4)
        left = rule.survivors(jax.random.key(0), drawn, 4)
        assert (np.asarray(left) < 4).sum() == least
        assert np.asarray(rule.arrivals(jax.random.key(0), drawn, 4)).sum() == least


def test_a_round_without_clients(federation, network):
    """Its update is noise alone, divided by the expected number of clients; other weights would be 0 / 0."""
    rule = Participation(1e-4, engine.Poisson())
    variables = network.init(jax.random.key(0))
    algorithm = FedAvg(TRAINING, {"dp_fedavg": DPFedAvg(2e-4, 3.0)})
    result = run_at_once(federation, network, algorithm, participation=rule, variables=variables)
    assert result.metrics[0]["watched"] != result.metrics[0]["watched"] and (result.clients["steps"] == 0).all()
    moved = masks.by_path(jax.tree.map(jnp.subtract, result.variables, variables))
    noise = np.concatenate([np.ravel(leaf) for leaf in moved.values()])
    assert noise.std() == pytest.approx(3 * 2e-4 / (5 * 1e-4), rel=0.1)
    silent = FedAvg(TRAINING, {"dp_fedavg": DPFedAvg(2e-4, 0.0)})
    same = run_at_once(federation, network, silent, participation=rule, variables=variables)
    assert_same_bits(same.variables, variables)
    with one_line(r"sampler poisson with weighting 'size': .* expected weighting='expected'"):
        run_at_once(federation, network, FedAvg(TRAINING), participation=rule)


def test_sums_are_divided_by_the_expected_number(federation, network):
    """Federated averaging of three clients that are weighted like five moves 3 / 5 as far as with equal weights."""
    variables = network.init(jax.random.key(0))
    assert Participation(0.6).expected_size(5) == 3
    lost = Participation(1.0, upload_loss=0.3)
    result, equal = (
        run_at_once(federation, network, FedAvg(TRAINING, weighting=w), participation=rule, variables=variables)
        for w, rule in (("expected", lost.replace(sampler=engine.Poisson())), ("equal", lost))
    )
    arrived = result.clients["arrived"][0] == 1
    assert 0 < arrived.sum() < 5
    assert (equal.clients["arrived"][0] == arrived).all()
    shrunk = jax.tree.map(lambda new, old: (new - old) * arrived.sum() / 5, equal.variables.params, variables.params)
    assert_close(jax.tree.map(jnp.subtract, result.variables.params, variables.params), shrunk, 1e-6)


@pytest.mark.slow
def test_noise_does_not_depend_on_where_states_are(federation, network):
    """Nor on the layout: with all clients at once, and with states and examples on the host, one after another."""
    algorithm = FedAvg(TRAINING, {"dp_fedavg": DPFedAvg(0.1, 0.2, quantile=0.4, bit_noise=1.0)})
    options = dict(participation=Participation(0.6, engine.Poisson()), rounds=2)
    results = [
        run_at_once(federation, network, algorithm, **options),
        run_at_once(federation, network, algorithm, **options, client_map=engine.Chunked(1), storage="host"),
    ]
    clips = [result.state.server.shared["dp_fedavg"] for result in results]
    assert clips[0] == clips[1] != 0.1
    assert_close(results[0].variables, results[1].variables, 1e-6)
