"""Virtual seconds of a round, from the steps and the speed of its clients; uploads behind the deadline are lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_same_bits, cases, run_at_once

from fedjax_collapse import FedAvg, Participation, engine

pytestmark = pytest.mark.slow

SECONDS = np.array([1.0, 8.0, 0.5, 2.0, 3.0], np.float32)  # of a step; the clients take 3, 1, 5, 3, 3 of them
CLOCK = engine.Clock(SECONDS, upload_seconds=0.25)
TIMED = Participation(clock=CLOCK)


def run(federation, network, rule, rounds=1, **options):
    return run_at_once(federation, network, FedAvg(TRAINING), rounds, participation=rule, **options)


def times(result):
    return [(row["virtual/round_seconds"], row["virtual/seconds"]) for row in result.metrics]


def test_a_round_takes_as_long_as_its_slowest_client(federation, network):
    rule = TIMED.replace(fraction=0.4, stragglers=0.5)
    result = run(federation, network, rule, rounds=5, evaluate_every=2)
    steps = result.clients["steps"]
    rounds = [max(n * s for n, s in zip(row, SECONDS, strict=True)) + 0.25 for row in steps.tolist()]
    expected = [(rounds[i - 1], sum(rounds[:i])) for i in (2, 4, 5)]
    np.testing.assert_allclose(times(result), expected, rtol=1e-6)
    assert len(set(rounds)) > 1


def test_without_a_speed_there_is_no_time(federation, network):
    """And with one, nothing else in a run is different."""
    default, timed = (run(federation, network, rule, rounds=2) for rule in (1.0, TIMED))
    assert not any(name.startswith("virtual/") for row in default.metrics for name in row)
    left = [{name: value for name, value in row.items() if "virtual/" not in name} for row in timed.metrics]
    assert left == default.metrics
    assert_same_bits(timed.variables, default.variables)
    assert_same_bits(timed.clients, default.clients)


@cases(
    (9.25, [1, 1, 1, 1, 1], 9.25),
    (7.0, [1, 0, 1, 1, 0], 7.0),
    (2.0, [0, 0, 1, 0, 0], 2.75),  # nobody is in time: the server waits for the first
)
def test_an_upload_behind_the_deadline_is_lost(deadline, arrived, seconds, federation, network):
    result = run(federation, network, Participation(clock=CLOCK.replace(deadline=deadline)))
    assert result.clients["arrived"].tolist() == [arrived]
    assert times(result) == [(seconds, seconds)]


def test_a_straggler_may_be_in_time(federation, network):
    """The deadline knows the steps that a client takes, in whatever phases."""
    training = TRAINING.replace(epochs=2.5)
    rule = Participation(stragglers=0.5, straggler_share=0.3, clock=engine.Clock(1.0, deadline=4.0))
    result = run_at_once(federation, network, FedAvg(training), 6, participation=rule)
    steps, arrived = result.clients["steps"], result.clients["arrived"]
    np.testing.assert_array_equal(arrived, steps <= 4)
    assert {3, 8} <= set(np.unique(steps)) and arrived.any(axis=1).all()


def test_speeds_are_drawn_for_each_client():
    clock, ones = engine.Clock(2.0, step_spread=0.5), jnp.ones((2, 4000))
    first, second = (np.asarray(clock.seconds(jax.random.key(seed), ones)) for seed in range(2))
    np.testing.assert_array_equal(*first)
    assert not np.array_equal(first, second)
    logs = np.log(first[0] / 2)
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 0.5) < 0.03
