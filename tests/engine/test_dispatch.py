"""What the server makes for each client of the states of all: the same in all layouts, in lost and resumed rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_close, assert_same_bits

from fedjax_collapse import FedAvg, Model, Participation, engine, nn
from fedjax_collapse.core.randomness import Stream, method_key
from fedjax_collapse.engine import host_rounds, rounds
from fedjax_collapse.methods import Method

pytestmark = pytest.mark.usefixtures("float64_everywhere")

SHARDED = engine.Sharded(2, engine.Chunked(2))
UNRELIABLE = Participation(0.6, dropout=0.2, upload_loss=0.5)
TOLERANCE = 1e-9
HEAD, KEY = "params/Dense_1/kernel", 12  # of the rounds, the first of which has a lost upload


class Exchange(Method):
    """Heads that arrived become halfway between themselves and their mean; everyone receives the mean and noise."""

    private = "head"
    dispatch_reads = (f"private/{HEAD}",)
    dispatch_makes = (f"private/{HEAD}", "memory/mean")
    dispatch_keeps = ("memory/noise", "memory/seen")

    def init_memory(self, variables, shapes, setup):
        mean = variables.params["Dense_1"]["kernel"]
        return dict(mean=mean, noise=jnp.zeros(()), seen=jnp.zeros(setup.num_clients), trained=jnp.zeros(()))

    def finish(self, view):
        pull = jnp.sum(view.memory["mean"] * view.trained.params["Dense_1"]["kernel"])
        return {**view.memory, "trained": view.memory["trained"] + pull}, ()

    def dispatch(self, view):
        arrived, heads = view.arrived, view.private[HEAD]
        mean = jnp.tensordot(arrived.astype(heads.dtype), heads, 1) / jnp.maximum(jnp.sum(arrived), 1)
        mixed = jnp.where(arrived[:, None, None], (heads + mean) / 2, heads)
        memory = dict(
            view.memory,
            mean=jnp.broadcast_to(mean, heads.shape),
            noise=jax.random.normal(view.key, arrived.shape) + view.round,
            seen=view.memory["seen"] + arrived,
        )
        return {**view.private, HEAD: mixed}, memory


class Silent(Exchange):
    """Exchanges nothing."""

    unused = ("dispatch",)


def run(federation, client_map=None, method=None, rule=None, calls=(3,), cohort_size=3, skips=False, module=rounds):
    """State and records after calls of so many rounds each, each from nothing but the state before it."""
    client_map = client_map or engine.Chunked(1)
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape)
    algorithm = FedAvg(TRAINING, {"exchange": method or Exchange()})
    algorithm.check(model)
    algorithm, rule = client_map.replicate(jax.tree.map(jnp.asarray, (algorithm, rule or Participation())))
    state = engine.init(algorithm, model, model.init(jax.random.key(0)), 5, jax.random.key(KEY))
    static = engine.RoundSpec(model, engine.Layout(client_map, cohort_size, 3), skips=skips)
    data, examples, records = engine.Assignment(federation.ownership, rule), federation.train, []
    for count in calls:
        if module is rounds:
            data = data._replace(order=client_map.replicate(engine.home_order(static, data)))
            data, examples = client_map.replicate((data, examples))
            state = engine.distribute(client_map, state, data.order)
        state, record, _ = module.run_rounds(static, algorithm, state, data, examples, count)
        state = engine.without_padding(state, 5, data.order)
        records.append(jax.device_get(record))
    return jax.device_get(state._replace(key=jax.random.key_data(state.key))), records, data.order


def test_one_round_by_hand(federation):
    """From the states after the same round without it."""
    before, (record,), _ = run(federation, method=Silent(), rule=UNRELIABLE, calls=(1,))
    after, _, _ = run(federation, rule=UNRELIABLE, calls=(1,))
    arrived = record.metrics["arrived"][0] == 1
    assert 0 < arrived.sum() < np.sum(record.steps[0] > 0)
    heads = before.clients.private[HEAD]
    mean = heads[arrived].mean(0)
    expected = np.where(arrived[:, None, None], (heads + mean) / 2, heads)
    assert_close(after.clients.private[HEAD], expected, 1e-14)
    found = after.clients.memory["exchange"]
    assert_close(found["mean"], np.stack([mean] * 5), 1e-14)
    assert_same_bits(found["seen"], np.stack([arrived.astype(float)] * 5))
    key = method_key(Stream.DISPATCH.key(jax.random.fold_in(jax.random.key(KEY), 0)), "exchange")
    assert_same_bits(found["noise"], jax.random.normal(key, (5,)))
    assert_same_bits(after.server.variables, before.server.variables)


def test_all_layouts_storages_and_resumed_runs_agree(federation):
    """Two devices with two clients side by side have the same bits on the host, and after a stop."""
    expected, _, _ = run(federation, rule=UNRELIABLE)
    assert np.ptp(expected.clients.memory["exchange"]["trained"]) > 0
    sharded = run(federation, SHARDED, rule=UNRELIABLE)
    for found in (sharded[0], run(federation, engine.Vectorized(), rule=UNRELIABLE)[0]):
        assert_close(found, expected, TOLERANCE)
    assert_same_bits(run(federation, SHARDED, rule=UNRELIABLE, module=host_rounds)[:2], sharded[:2])
    assert_same_bits(run(federation, SHARDED, rule=UNRELIABLE, calls=(1, 2))[0], sharded[0])


def test_states_at_home(federation):
    """Everyone takes part, so that states are stored in the order of cohorts, and padded."""
    expected, _, none = run(federation, cohort_size=5)
    found, _, order = run(federation, SHARDED, cohort_size=5)
    assert none is None and order.tolist() != sorted(order.tolist()) and len(order) > 5
    assert_close(found, expected, TOLERANCE)


def test_a_client_that_is_skipped_has_not_arrived(federation):
    """One whose images are not finite is as one that never was in a cohort, on the device and on the host."""
    inputs = np.array(federation.train.inputs, np.float32)
    inputs[np.asarray(federation.ownership.rows)[1, :7]] = np.nan
    broken = federation._replace(train=federation.train._replace(inputs=jnp.asarray(inputs)))
    options = dict(cohort_size=5, skips=True)
    found, (record,), _ = run(broken, **options)
    assert (record.metrics["skipped_clients"][:, 1] == 1).all()
    seen = found.clients.memory["exchange"]["seen"]
    assert_same_bits(seen, np.tile([3.0, 0, 3, 3, 3], (5, 1)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.clients))
    assert_same_bits(run(broken, module=host_rounds, **options)[0], found)
