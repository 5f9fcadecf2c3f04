"""One, two, four and eight devices: the same numbers, divided client states, and no transfers inside a round."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composed_algorithms import composed, network_of
from conftest import TRAINING, assert_close, assert_same_bits
from engine_rounds import run_rounds, start_rounds

from fedjax_collapse import MOON, FedAvg, FedDecorr, FedMR, Model, Scaffold, engine, nn, simulate
from fedjax_collapse.engine import memory
from fedjax_collapse.methods import TopK
from fedjax_collapse.optim.aggregation import damped_momentum

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64_everywhere")]

CHUNKED, SHARDED, VECTORIZED = engine.Chunked, engine.Sharded, engine.Vectorized
TOLERANCE = 1e-9  # in float64: the order of summation is all that differs
# with ``drop_last``, ``simulate`` chooses the layouts of ``prepare``, so that all tests share compiled programs
METHODS = {"scaffold": Scaffold(), "feddecorr": FedDecorr(0.1), "fedmr": FedMR(), "top_k": TopK(0.5)}
DAMPED = jax.tree_util.Partial(damped_momentum, 0.5)
COMPOSED = FedAvg(TRAINING.replace(drop_last=True), METHODS, server_optimizer=DAMPED)
PERSONAL = FedAvg(TRAINING, {"scaffold": Scaffold(), "moon": MOON()}, private="batch_norm")


prepare, run = (functools.partial(function, cohort_size=3) for function in (start_rounds, run_rounds))


@pytest.mark.parametrize("algorithm", composed(), ids=lambda algorithm: "-".join(algorithm.methods))
def test_every_method_agrees_in_all_layouts(federation, algorithm):
    """Two clients side by side on each of two devices, and one after the other on one."""
    algorithm, network = algorithm.replace(training=TRAINING), network_of(algorithm)
    tolerance = 1e-7 if network.task.views > 1 else TOLERANCE  # together, not alone, they magnify rounding
    reference = run(federation, network, algorithm, CHUNKED(1))
    assert_close(run(federation, network, algorithm, SHARDED(2, CHUNKED(2))), reference, tolerance)


@pytest.mark.parametrize("client_map", [CHUNKED(3), SHARDED(8, CHUNKED(1)), SHARDED(4, VECTORIZED())], ids=str)
def test_all_layouts_agree(federation, network, client_map):
    reference = run(federation, network, COMPOSED, CHUNKED(1))
    assert_close(run(federation, network, COMPOSED, client_map), reference, TOLERANCE)


def test_client_states_are_divided(federation, network):
    """Five clients padded to eight, two of them on each of four devices; before and after rounds."""

    def check(clients):
        for leaf in jax.tree.leaves(clients):
            shares = {shard.device: shard.index[0] for shard in leaf.addressable_shards}
            assert {shard.data.shape for shard in leaf.addressable_shards} == {(2, *leaf.shape[1:])}
            assert sorted((rows.start or 0, rows.stop) for rows in shares.values()) == [(0, 2), (2, 4), (4, 6), (6, 8)]

    rounds, algorithm, state, data, examples = prepare(federation, network, COMPOSED, SHARDED(4, CHUNKED(1)))
    check(state.clients)
    check(engine.run_rounds(rounds, algorithm, state, data, examples, 2).state.clients)


def test_states_at_home_are_their_clients(federation, monkeypatch):
    """Where everyone takes part states stay with the devices, also if the layout is reduced; what is seen of them is
    ordered by identity."""
    model = Model(nn.SmallCNN(4, (4,)), federation.input_shape)

    def go(client_map):
        schedule = dict(rounds=3, evaluate_every=2, key=jax.random.key(3))
        return simulate(federation, model, PERSONAL, client_map=client_map, **schedule)

    expected, result = go(CHUNKED(1)), go(SHARDED(2, CHUNKED(2)))
    assert_close(result.personal(1), expected.personal(1), TOLERANCE)
    for row, of_one in zip(result.metrics, expected.metrics, strict=True):
        assert_close(row, of_one, 1e-6)
    needed = iter([math.inf, 0.0])
    monkeypatch.setattr(memory, "program_bytes", lambda compile: next(needed))
    for found in (result, go(SHARDED(2, CHUNKED(5)))):
        assert_close(found.state.clients, expected.state.clients, TOLERANCE)
    assert next(needed, None) is None


def test_where_states_are_stored_changes_nothing(federation, network):
    """Bit for bit, though with states at home those that only pad are stored like clients."""
    client_map, outcomes = SHARDED(4, CHUNKED(2)), []
    for is_at_home in (False, True):
        rounds, algorithm, state, data, examples = prepare(federation, network, COMPOSED, client_map, cohort_size=5)
        if is_at_home:
            order = client_map.replicate(engine.home_order(rounds, data))
            assert sorted(order.tolist())[:5] == list(range(5)) and order.tolist() != sorted(order.tolist())
            state = engine.distribute(client_map, engine.without_padding(state, 5), order)
            data = data._replace(order=order)
        advance = engine.run_rounds(rounds, algorithm, state, data, examples, 2)
        state = engine.without_padding(advance.state._replace(key=()), 5, data.order)
        outcomes.append(jax.device_get(advance._replace(state=state)))
    assert_same_bits(*outcomes)


def test_rounds_transfer_nothing(federation, network):
    """The second call finds everything in place."""
    scaffold, client_map = FedAvg(TRAINING, {"scaffold": Scaffold()}), SHARDED(2, CHUNKED(1))
    rounds, algorithm, state, data, examples = prepare(federation, network, scaffold, client_map)
    num_rounds = client_map.replicate(jnp.array(2))
    state = engine.run_rounds(rounds, algorithm, state, data, examples, num_rounds).state
    with jax.transfer_guard("disallow"):
        state = engine.run_rounds(rounds, algorithm, state, data, examples, num_rounds).state
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            jax.jit(jnp.add)(state.round, np.array(2))
    assert int(state.round) == 4


def test_a_round_exchanges_the_mean_upload_and_three_numbers_of_each_client(federation):
    dense = Model(nn.MLP(federation.num_classes, hidden=(8,)), federation.input_shape)
    rounds, algorithm, _, *data = prepare(federation, dense, FedAvg(TRAINING), SHARDED(2, CHUNKED(1)), cohort_size=4)
    program = engine.lower(rounds, algorithm, *data).compile().as_text()
    results = " ".join(re.findall(r"= (.*?) all-reduce(?:-start)?\(", program))
    shapes = [re.findall(r"\d+", shape) for shape in re.findall(r"\b[a-z]+\d+\[([\d,]*)\]", results)]
    upload = sum(leaf.size for leaf in jax.tree.leaves(dense.variable_shapes().params))
    assert sum(math.prod(map(int, shape)) for shape in shapes) == upload + 3 * 4


def test_a_run_goes_on_with_another_number_of_devices(federation, network, tmp_path):
    """Its checkpoint is of the five clients, not of those that padded them to six."""

    def go(client_map, rounds, folder=None):
        schedule = dict(rounds=rounds, evaluate_every=2, participation=0.6, key=jax.random.key(3))
        return simulate(federation, network, COMPOSED, client_map=client_map, folder=folder, **schedule)

    two = SHARDED(2, CHUNKED(1))
    go(two, 2, tmp_path)
    resumed = go(SHARDED(4, CHUNKED(1)), 4, tmp_path)
    whole = go(two, 4)
    assert resumed.rounds_done == 4 and [row["round"] for row in resumed.metrics] == [2, 4]
    assert_close(resumed.variables, whole.variables, TOLERANCE)
    assert_close(resumed.clients, whole.clients, TOLERANCE)
