"""The compiled round: layouts, padding that changes nothing, traced numbers, failures by name, clients of devices."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits, cases, check
from engine_rounds import CHUNKED, run_rounds, start_rounds

from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, Model, Participation, engine, nn, simulate
from fedjax_collapse.core import processes
from fedjax_collapse.data.batches import shuffled_rows
from fedjax_collapse.engine import layout as engine_layout
from fedjax_collapse.engine import placement
from fedjax_collapse.engine import rounds as engine_rounds
from fedjax_collapse.schema.options import constructor

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.01, momentum=0.9, weight_decay=1e-3)
DECORR = FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1, "official")})


def test_padding_of_the_index_table_changes_nothing(federation, model):
    """More padding rows, and others: the same batches, the same bits."""
    ownership, expected = federation.ownership, run_rounds(federation, model, DECORR)
    is_padding = jnp.arange(ownership.rows.shape[1]) >= ownership.sizes[:, None]
    wider = jnp.pad(ownership.rows, ((0, 0), (0, 13)), constant_values=5)
    for rows in (wider, jnp.where(is_padding, 77, ownership.rows)):
        other = federation._replace(ownership=ownership._replace(rows=rows))
        assert_same_bits(run_rounds(other, model, DECORR), expected)


def test_padded_steps_change_nothing(federation, model):
    """A client in a chunk with a longer one ends as it does in a chunk with its like."""
    alone = run_rounds(federation, model, DECORR, engine.Vectorized(), num_rounds=1)
    sizes = federation.ownership.sizes.at[2].set(8)  # the longest client becomes short
    short = federation._replace(ownership=federation.ownership._replace(sizes=sizes))
    together = run_rounds(short, model, DECORR, engine.Vectorized(), num_rounds=1)
    others = [0, 1, 3, 4]
    assert_same_bits(*({k: v[0][others] for k, v in r.record.metrics.items()} for r in (alone, together)))
    assert alone.watched.ids.tolist() == [0]
    assert_same_bits(alone.watched, together.watched)


@pytest.mark.slow
def test_one_compilation_for_all_rounds_and_numbers(federation, model, compiled):
    """Those of training, of a method, of the server's optimizer and of the rule who takes part."""
    options = dict(key=jax.random.key(0), client_map=engine.Sharded(2, engine.Chunked(1)))
    for max_rounds in (3, 4):  # 4: a shape that no other test has compiled
        for number, rounds in ((0.2, 7), (0.4, 5)):
            training = TRAINING.replace(learning_rate=number, momentum=number, epochs=5 * number)
            optimizer = constructor(optax.sgd, learning_rate=1.0, momentum=number)
            algorithm = FedAvg(training, {"feddecorr": FedDecorr(number, "official")}, server_optimizer=optimizer)
            clock = engine.Clock(1.0, deadline=3 + number)
            rule = Participation(dropout=number, stragglers=number, upload_loss=number, clock=clock)
            given = dict(rounds=rounds, evaluate_every=max_rounds, participation=rule)
            simulate(federation, model, algorithm, **given, **options)
    assert sum("_run_rounds" in name for name in compiled) == 2


def test_shuffled_rows():
    rows = jnp.arange(100, 120)
    shuffled = shuffled_rows(jax.random.key(0), rows, jnp.array(13))
    assert sorted(shuffled[:13].tolist()) == list(range(100, 113)) and shuffled[:13].tolist() != list(range(100, 113))
    other = shuffled_rows(jax.random.key(0), rows[:15], jnp.array(13))
    np.testing.assert_array_equal(shuffled[:13], other[:13])


@cases((False, engine.Chunked(1), False), (True, engine.Chunked(1), True), (False, engine.Loop(), True))
def test_rounds_are_compiled_but_for_the_debug_layout_and_under_disable_jit(is_disabled, client_map, expected, model):
    spec = engine.RoundSpec(model, engine.Layout(client_map, cohort_size=1))
    with jax.disable_jit(is_disabled), engine_rounds.compiled_or_not(spec):
        assert jax.config.jax_disable_jit == expected


@pytest.mark.slow
def test_debug_loop_names_client_and_step(federation):
    model = Model(nn.MLP(4, hidden=(3,)), federation.input_shape)
    exploding = FedAvg(LocalTraining(batch_size=8, learning_rate=1e25))
    with pytest.raises(FloatingPointError, match="is not finite") as error:
        run_rounds(federation, model, exploding, engine.Loop(), num_rounds=1)
    assert error.value.__notes__[0] == "in local step 1 of client 4"  # client 1, the smaller one, has a single step


@cases(
    (lambda: engine.Chunked(0), "clients_at_once 0 is too small, expected >= 1"),
    (lambda: engine.Chunked(2.5), "clients_at_once 2.5: expected int, got float"),
    (lambda: engine.Chunked(10**14), "clients_at_once 100000000000000 does not fit into 32 bits"),
    (lambda: engine.Sharded(9, engine.Chunked(1)), "num_devices 9: expected 1 to 8"),
)
def test_wrong_layouts(wrong, message):
    check(message, wrong)


@pytest.mark.slow
def test_short_batches_cost_their_parts_alone(federation, model):
    """Chosen by network and sizes; the numbers stay those of whole batches."""
    sizes = np.asarray(federation.ownership.sizes)
    dense, deep = nn.MLP(4, hidden=(5,)), nn.MLP(4, hidden=(2,) * 10)
    parts = functools.partial(engine.batch_parts, batch_size=8)
    assert parts(engine.Chunked(1), model, sizes) == 2
    assert parts(engine.Chunked(1), Model(dense, federation.input_shape), sizes) == 4
    assert parts(engine.Sharded(2, engine.Chunked(1)), Model(dense, federation.input_shape), sizes) == 4
    assert parts(engine.Chunked(2), model, sizes) == parts(engine.Vectorized(), model, sizes) == 0
    deep = Model(deep, federation.input_shape)
    assert [parts(engine.Chunked(1), deep, np.full(5, size)) for size in (2, 4, 6, 30)] == [2, 2, 0, 0]
    assert parts(engine.Chunked(1), model, np.full(5, 8 * 100 + 3)) == 0
    assert engine_layout.padded_sizes(np.array([0, 1, 3, 4, 7, 8, 9, 19]), 8, 3).tolist() == [0, 3, 3, 6, 8, 8, 11, 19]

    def loss(view):
        jax.debug.callback(lambda labels: computed.append(len(labels)), view.batch.labels)
        return view.model.task.loss(view.outputs, view.batch)

    def outcome(parts):
        algorithm = FedAvg(TRAINING.replace(task_loss=loss))
        rounds, *given = start_rounds(federation, model, algorithm, engine.Chunked(1))
        rounds = engine.RoundSpec(model, rounds.layout._replace(batch_parts=parts))
        return engine.run_rounds(rounds, *given, 1)[1:]

    computed = []
    in_parts = outcome(3)
    jax.effects_barrier()
    assert sum(computed) == TRAINING.epochs * engine_layout.padded_sizes(sizes, 8, 3).sum()
    assert_close(in_parts, outcome(1), 1e-5)


def test_a_step_of_a_large_network_copies_no_params(federation):
    dense = Model(nn.MLP(federation.num_classes, hidden=(1024, 1024)), federation.input_shape)
    client_map, full = engine.Chunked(1), np.full(5, 8)
    rounds, algorithm, _, *given = start_rounds(federation, dense, FedAvg(TRAINING), client_map)
    layout = rounds.layout._replace(batch_parts=engine.batch_parts(client_map, dense, full, 8))
    computations = engine.lower(engine.RoundSpec(dense, layout), algorithm, *given).compile().as_text().split("\n\n")
    steps = [text for text in computations if "f32[1024,1024]" in text and " while(" not in text]
    assert steps and not any(re.search(r"f32\[1024,1024\]\S* copy\(", text) for text in steps)


@pytest.mark.slow
def test_a_loss_is_traced_once_for_all_rounds_and_numbers(federation, model):
    """Also by the check before the first round, and for other learning rates, strengths and keys."""
    chex.clear_trace_counter()

    @chex.assert_max_traces(n=1)
    def loss(view):
        return view.model.task.loss(view.outputs, view.batch)

    for rate in (0.01, 0.02):
        training = TRAINING.replace(task_loss=loss, learning_rate=rate)
        algorithm = FedAvg(training, {"feddecorr": FedDecorr(rate, "official")})
        simulate(federation, model, algorithm, rounds=3, key=jax.random.key(0), client_map=CHUNKED)


@cases((2, 1, [0, 3, 4, 1, 2, 5]), (3, 1, [0, 5, 1, 4, 2, 3]), (2, 2, [0, 1, 6, 7, 2, 3, 4, 5]), (1, 2, [0, 1, 2, 3]))
def test_chunks_are_dealt_in_turn_and_back(devices, at_once, expected):
    """Given by size, the largest chunk of a row goes to the device that had the smallest one of the row before."""
    client_map, ids = engine.Sharded(devices, engine.Chunked(at_once)), 10 + np.arange(len(expected))
    for arrange in (client_map.arrange, jax.jit(client_map.arrange)):
        np.testing.assert_array_equal(arrange(jnp.asarray(ids)), ids[expected])


def test_several_processes_use_all_their_devices(monkeypatch):
    monkeypatch.setattr(processes, "is_multiprocess", lambda: True)
    check(r"num_devices 2: expected 8, all that the 1 processes have", engine.Sharded, 2, engine.Chunked(1))
    assert len(engine.Sharded(8, engine.Chunked(1)).devices) == 8


@cases((1, None), (2, None), (2, "devices"))
def test_a_copy_outlives_what_a_round_is_given(devices, axis):
    sharding = jax.sharding.NamedSharding(jax.make_mesh((devices,), ("devices",)), jax.P(axis))
    original = jax.device_put({"key": jax.random.split(jax.random.key(0), 4), "w": jnp.arange(4.0)}, sharding)
    copy, values = placement.copied(original), str(original)
    jax.jit(lambda tree: jax.tree.map(lambda x: x[::-1], tree), donate_argnums=0)(original)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(original))
    assert str(copy) == values
