"""Cohorts of clients that are drawn independently: how many, whom, and rounds without any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, run_at_once
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import DPFedAvg, FedAvg, LocalTraining, Participation, UserError, engine
from fedjax_collapse.core import masks

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05)


def cohort(rule, num_clients, round=0):
    key, sizes = jax.random.fold_in(jax.random.key(5), round), jnp.ones(num_clients, int)
    return np.asarray(rule.draw(key, sizes, rule.cohort_size(num_clients)))


@settings(max_examples=20, deadline=None)
@given(
    num_clients=st.integers(1, 40),
    fraction=st.floats(0.001, 1),
    limit=st.one_of(st.none(), st.integers(1, 9)),
    round=st.integers(0, 99),
)
def test_cohorts(num_clients, fraction, limit, round):
    """Of distinct clients and padding, as many as there is room for; a smaller limit leaves out some of the same."""
    whole, cut = (
        cohort(Participation(fraction, engine.Poisson(at)), num_clients, round) for at in (num_clients, limit)
    )
    drawn, left = set(whole[whole < num_clients].tolist()), cut[cut < num_clients].tolist()
    mean = fraction * num_clients
    assert len(whole) == num_clients and len(cut) == min(num_clients, limit or int(np.ceil(mean + 5 * mean**0.5)))
    assert set(left) <= drawn and len(left) == len(set(left)) == min(len(drawn), len(cut))
    assert fraction < 1 or len(drawn) == num_clients
    more = cohort(Participation(min(1, 1.5 * fraction), engine.Poisson(num_clients)), num_clients, round)
    assert drawn <= set(more.tolist())  # of a larger fraction, with the same key


def test_frequencies():
    """Numbers of clients are binomial; of those beyond the limit each is as likely to be left out."""
    num_clients, rounds = 30, 4000
    rule = Participation(0.2, engine.Poisson(limit=4))
    keys = jax.random.split(jax.random.key(1), rounds)

    def drawn(limit):
        rule = Participation(0.2, engine.Poisson(limit))
        sizes = jnp.ones(num_clients, int)
        return np.asarray(jax.vmap(lambda key: rule.draw(key, sizes, rule.cohort_size(num_clients)))(keys))

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
    with pytest.raises(UserError, match=r"sampler poisson with weighting 'size': .* expected weighting='expected'"):
        run_at_once(federation, network, FedAvg(TRAINING), participation=rule)


def test_sums_are_divided_by_the_expected_number(federation, network):
    """Federated averaging of three clients that are weighted like five moves 3 / 5 as far as with equal weights."""
    variables, rule = network.init(jax.random.key(0)), Participation(0.6)
    sizes = {"expected": Participation(1.0, engine.Poisson()), "equal": Participation(1.0)}
    moved = {}
    for weighting, given_rule in sizes.items():
        result = run_at_once(
            federation, network, FedAvg(TRAINING, weighting=weighting), participation=given_rule, variables=variables
        )
        moved[weighting] = jax.tree.map(jnp.subtract, result.variables.params, variables.params)
    assert_close(moved["expected"], moved["equal"], 1e-6)
    assert rule.expected_size(5) == 3
    lost = Participation(1.0, engine.Poisson(), upload_loss=0.3)
    result = run_at_once(
        federation, network, FedAvg(TRAINING, weighting="expected"), participation=lost, variables=variables
    )
    arrived = result.clients["arrived"][0] == 1
    assert 0 < arrived.sum() < 5
    equal = run_at_once(
        federation, network, FedAvg(TRAINING, weighting="equal"), variables=variables,
        participation=Participation(1.0, upload_loss=0.3),
    )  # fmt: skip
    assert (equal.clients["arrived"][0] == arrived).all()
    shrunk = jax.tree.map(lambda new, old: (new - old) * arrived.sum() / 5, equal.variables.params, variables.params)
    assert_close(jax.tree.map(jnp.subtract, result.variables.params, variables.params), shrunk, 1e-6)
