"""The compiled round: layouts agree, padding changes nothing, numbers are traced, failures are named."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits, one_line

from fedjax_collapse import FedAvg, FedDecorr, Federation, LocalTraining, Model, Participation, engine, nn, simulate
from fedjax_collapse.data.batches import shuffled_rows
from fedjax_collapse.engine import layout as engine_layout
from fedjax_collapse.schema.options import constructor

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.01, momentum=0.9, weight_decay=1e-3)
CHUNKED = engine.Chunked(2)
DECORR = FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1, "official")})


def run(federation, model, algorithm, client_map=CHUNKED, num_rounds=2, cohort_size=None, max_rounds=2):
    """State, record and watched client after some rounds from a fixed start."""
    algorithm = client_map.replicate(jax.tree.map(jnp.asarray, algorithm))
    state = engine.init(algorithm, model, model.init(jax.random.key(0)), federation.num_clients, jax.random.key(1))
    state = engine.distribute(client_map, state)
    data, examples = client_map.replicate((engine.Assignment(federation.ownership), federation.train))
    rounds = engine.RoundSpec(model, engine.Layout(client_map, cohort_size or federation.num_clients, max_rounds))
    advance = engine.run_rounds(rounds, algorithm, state, data, examples, num_rounds)
    state = engine.without_padding(advance.state, federation.num_clients)
    return jax.device_get(advance._replace(state=state._replace(key=jax.random.key_data(state.key))))


def test_padding_of_the_index_table_changes_nothing(federation, model):
    """More padding rows, and others: the same batches, the same bits."""
    ownership, expected = federation.ownership, run(federation, model, DECORR)
    is_padding = jnp.arange(ownership.rows.shape[1]) >= ownership.sizes[:, None]
    wider = jnp.pad(ownership.rows, ((0, 0), (0, 13)), constant_values=5)
    for rows in (wider, jnp.where(is_padding, 77, ownership.rows)):
        other = federation._replace(ownership=ownership._replace(rows=rows))
        assert_same_bits(run(other, model, DECORR), expected)


def test_padded_steps_change_nothing(federation, model):
    """A client in a chunk with a longer one ends as it does in a chunk with its like."""
    alone = run(federation, model, DECORR, engine.Vectorized(), num_rounds=1)
    sizes = federation.ownership.sizes.at[2].set(8)  # the longest client becomes short
    short = federation._replace(ownership=federation.ownership._replace(sizes=sizes))
    together = run(short, model, DECORR, engine.Vectorized(), num_rounds=1)
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


@pytest.mark.slow
def test_debug_loop_names_client_and_step(federation):
    model = Model(nn.MLP(4, hidden=(3,)), federation.input_shape)
    exploding = FedAvg(LocalTraining(batch_size=8, learning_rate=1e25))
    with pytest.raises(FloatingPointError, match="is not finite") as error:
        run(federation, model, exploding, engine.Loop(), num_rounds=1)
    assert error.value.__notes__[0] == "in local step 1 of client 4"  # client 1, the smaller one, has a single step


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: engine.Chunked(0), "clients_at_once 0 is too small, expected >= 1"),
        (lambda: engine.Chunked(2.5), "clients_at_once 2.5: expected int, got float"),
        (lambda: engine.Chunked(10**14), "clients_at_once 100000000000000 does not fit into 32 bits"),
        (lambda: engine.Sharded(9, engine.Chunked(1)), "num_devices 9: expected 1 to 8"),
    ],
)
def test_wrong_layouts(wrong, message):
    with one_line(message):
        wrong()


def test_federation_checks_its_arrays():
    images, labels, parts = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 2, [np.arange(3), np.arange(3, 6)]
    good = dict(images=images, labels=labels, partition=parts, test_images=images, test_labels=labels)
    assert Federation.from_arrays(**good).class_counts().tolist() == [[2, 1], [1, 2]]
    for change, message in (
        (dict(labels=labels[:5]), "6 images but 5 labels"),
        (dict(labels=labels - 1), r"train labels: expected .*, got int64 \(6,\) from -1"),
        (dict(test_labels=labels + 1, class_names=("a", "b")), "test data: label 2 has no name among 2 class names"),
        (dict(images=images[0]), "expected .examples, height, width"),
        (dict(partition=[np.arange(7)]), "outside the 6 examples"),
        (dict(partition=[np.arange(6), np.arange(0)]), "every client needs at least one example"),
        (dict(capacity=2), "capacity 2 is less than the 3"),
        (dict(class_names=("a",)), "label 1 has no name"),
        (dict(images=np.where(images, 0.5, np.nan)), "train images: NaN"),
        (dict(test_images=images[:, :3]), r"training images are \(4, 4, 1\), test images \(3, 4, 1\)"),
        (dict(storage="disk"), "storage 'disk': expected one of device, host"),
    ):
        with one_line(message):
            Federation.from_arrays(**{**good, **change})


@pytest.mark.slow
def test_short_batches_cost_their_parts_alone(federation, model):
    """Chosen by network and sizes; the numbers stay those of whole batches."""
    sizes = np.asarray(federation.ownership.sizes)
    dense, deep = nn.MLP(4, hidden=(5,)), nn.MLP(4, hidden=(2,) * 10)
    parts = functools.partial(engine.batch_parts, batch_size=8)
    assert parts(engine.Chunked(1), model, sizes) == 2
    assert parts(engine.Chunked(1), Model(dense, federation.input_shape), sizes) == 4
    assert parts(engine.Sharded(2, engine.Chunked(1)), Model(dense, federation.input_shape), sizes) == 4
    assert parts(engine.Chunked(2), model, sizes) == parts(engine.Vectorized(), model, sizes) == 1
    deep = Model(deep, federation.input_shape)
    assert [parts(engine.Chunked(1), deep, np.full(5, size)) for size in (2, 4, 6, 30)] == [2, 2, 1, 1]
    assert parts(engine.Chunked(1), model, np.full(5, 8 * 100 + 3)) == 1
    assert engine_layout.padded_sizes(np.array([0, 1, 3, 4, 7, 8, 9, 19]), 8, 3).tolist() == [0, 3, 3, 6, 8, 8, 11, 19]

    def outcome(parts):
        rounds = engine.RoundSpec(model, engine.Layout(engine.Chunked(1), cohort_size=5, batch_parts=parts))
        state = engine.init(FedAvg(TRAINING), model, model.init(jax.random.key(0)), 5, jax.random.key(1))
        algorithm, data = jax.tree.map(jnp.asarray, FedAvg(TRAINING)), engine.Assignment(federation.ownership)
        return engine.run_rounds(rounds, algorithm, state, data, federation.train, 1)[1:]

    assert_close(outcome(3), outcome(1), 1e-5)


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
