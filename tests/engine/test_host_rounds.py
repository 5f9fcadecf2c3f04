"""Rounds from the host: the same numbers as on the device, which holds no more the more clients there are."""

import gc
import signal
import threading
import time
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TWO_EPOCHS as TRAINING
from conftest import assert_close, assert_same_bits, one_line
from engine_rounds import start_rounds

from fedjax_collapse import FedAvg, Federation, Model, engine, methods, nn
from fedjax_collapse.data import augment
from fedjax_collapse.engine import cohort, host_rounds, rounds
from fedjax_collapse.run import evaluation as evaluations

pytestmark = pytest.mark.slow

AUGMENTED = TRAINING.replace(augmentation=augment.preset("feddecorr_cifar10"))
ARMS = {
    "fedavg": FedAvg(TRAINING),
    "recalibrated": FedAvg(TRAINING, {"recalibrate": methods.Recalibrate()}),
    "private_feddyn_moon": FedAvg(TRAINING, {"feddyn": methods.FedDyn(), "moon": methods.MOON()}, private="head"),
    "scaffold_fedmr_augmented": FedAvg(
        AUGMENTED, {"scaffold": methods.Scaffold(), "fedmr": methods.FedMR(initial_prototypes=True)}
    ),
}
SCAFFOLD = FedAvg(TRAINING, {"scaffold": methods.Scaffold()})
MAPS = {"chunked": engine.Chunked(2), "sharded": engine.Sharded(2, engine.Chunked(1))}
MLP = nn.MLP(4, hidden=(4,))
NETWORKS = {"recalibrated": nn.MLP(4, hidden=(3,), norm="batch")}


@pytest.fixture
def is_double(request):
    if request.param:
        request.getfixturevalue("float64")
    return request.param


def run(module, federation, model, algorithm, client_map, calls=(3, 2)):
    """State, records and watched client after calls of so many rounds each."""
    given = start_rounds(federation, model, algorithm, client_map, 3, 3, module=module)
    (static, algorithm, state, *data), records = given, []
    for num_rounds in calls:
        state, record, watched = module.run_rounds(static, algorithm, state, *data, num_rounds)
        records.append(record)
    state = engine.without_padding(state, federation.num_clients)
    return jax.device_get((state._replace(key=jax.random.key_data(state.key)), records, watched))


def on_host(federation):
    """The federation with its examples and its index table in NumPy arrays."""
    train, ownership, test = jax.tree.map(np.asarray, (federation.train, federation.ownership, federation.test))
    return federation._replace(train=train, ownership=ownership, test=test)


def many(num_clients):
    """A federation on the host with four examples per client."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (4 * num_clients, 8, 8, 2), np.uint8), np.arange(4 * num_clients) % 4
    parts = np.split(rng.permutation(len(labels)), num_clients)
    return on_host(Federation.from_arrays(images, labels, parts, images[:4], labels[:4]))


@pytest.mark.parametrize(
    ("arm", "client_map", "is_double"),
    [
        ("recalibrated", "chunked", False),
        ("private_feddyn_moon", "sharded", True),
        ("scaffold_fedmr_augmented", "sharded", False),
    ],
    indirect=["is_double"],
)
def test_the_same_bits_as_on_the_device(federation, arm, client_map, is_double):
    context = (Model(NETWORKS.get(arm, MLP), federation.input_shape), ARMS[arm], MAPS[client_map])
    resident = run(rounds, federation, *context)
    hosted = run(host_rounds, on_host(federation), *context)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(hosted[0].clients))
    if arm == "scaffold_fedmr_augmented":  # the first reports are added up in another order
        assert_close(hosted, resident, 1e-6)
    else:
        assert_same_bits(hosted, resident)


def test_the_debug_loop(federation):
    context = (Model(MLP, federation.input_shape), ARMS["fedavg"])
    loop = run(host_rounds, on_host(federation), *context, engine.Loop(), calls=(1,))
    assert_close(loop, run(rounds, federation, *context, MAPS["sharded"], calls=(1,)), 1e-5)


def test_states_are_changed_in_place_unless_read_only(federation):
    given = on_host(federation), Model(MLP, federation.input_shape), ARMS["scaffold_fedmr_augmented"], MAPS["chunked"]
    static, algorithm, before, *data = start_rounds(*given, 3, module=host_rounds)
    assert not any(leaf.any() for leaf in jax.tree.leaves(before.clients))
    once, _, _ = host_rounds.run_rounds(static, algorithm, before, *data, 1)
    kept = jax.tree.map(np.copy, once.clients)
    twice, _, _ = host_rounds.run_rounds(static, algorithm, once, *data, 1)
    for first, second, copy in zip(*map(jax.tree.leaves, (once.clients, twice.clients, kept)), strict=True):
        assert np.shares_memory(first, second) and (second != copy).any()


def test_the_device_holds_no_more_for_more_clients(monkeypatch, compiled):
    """One program for ten clients and for 200, and as many bytes on the device, but for the clients' sizes."""
    train, take, held = cohort.train_and_aggregate, host_rounds.OnHost.take, []
    run_round = host_rounds._COMPILED[train]

    def take_once_all_are_sent(store, round):
        taken = take(store, round)
        futures.wait(store._sent.values())
        return taken

    def measure(*arguments, **options):
        held[-1].append(sum(array.nbytes for array in jax.live_arrays()))
        return run_round(*arguments, **options)

    monkeypatch.setitem(host_rounds._COMPILED, train, measure)
    monkeypatch.setattr(host_rounds.OnHost, "take", take_once_all_are_sent)
    for federation in (many(10), many(200)):
        gc.collect()
        held.append([-sum(array.nbytes for array in jax.live_arrays())])
        run(host_rounds, federation, Model(MLP, (8, 8, 2)), SCAFFOLD, MAPS["chunked"])
    assert sum("train_and_aggregate" in name for name in compiled) == 1
    few, more = (np.add(peaks, baseline) for baseline, *peaks in held)
    assert len(few) == 5 and few.min() > 0
    assert (more - few <= 190 * 4).all()


def test_each_device_receives_the_examples_of_its_clients(monkeypatch):
    """A quarter of the cohort's on each of four devices; nothing is read for devices of another process."""
    hosted, client_map = many(40), engine.Sharded(4, engine.Chunked(2))
    static = engine.RoundSpec(Model(MLP, (8, 8, 2)), engine.Layout(client_map, cohort_size=16))
    store = host_rounds.OnHost(static, ARMS["fedavg"], engine.Assignment(hosted.ownership), hosted.train)
    store.draw(jax.random.key(0), 2)
    monkeypatch.setattr(host_rounds, "_AHEAD", 0)
    drawn, rows, examples = store.take(0)
    for device, of_device in enumerate(np.split(np.asarray(drawn.id), 4)):
        own = hosted.ownership.rows[of_device].reshape(-1)
        shares = [array.addressable_shards[device].data for array in (*examples[:2], examples.identities, rows)]
        expected = hosted.train.inputs[own], hosted.train.labels[own], own, np.arange(16).reshape(4, 4)
        assert_same_bits([np.asarray(share) for share in shares], list(expected))
        assert len(shares[0]) == len(examples.inputs) / 4
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert not np.any(store.take(1).examples.inputs)


def test_the_next_examples_are_sent_before_the_round_is_waited_for(federation, monkeypatch):
    """In a thread, while the results are waited for; all cohorts are drawn before the first round, as devices work in
    order."""
    order, to_host = [], host_rounds.to_host

    def noted(name, function):
        def called(*arguments, **options):
            outcome = function(*arguments, **options)
            order.append((name, threading.current_thread().name))
            return outcome

        return called

    def wait(results):
        deadline = time.monotonic() + 20
        while [name for name, _ in order].count("send") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append(("to_host", ""))
        return to_host(results)

    compiled, train = host_rounds._COMPILED, cohort.train_and_aggregate
    monkeypatch.setattr(host_rounds, "_draw", noted("draw", host_rounds._draw))
    monkeypatch.setattr(host_rounds.OnHost, "send", noted("send", host_rounds.OnHost.send))
    monkeypatch.setitem(compiled, train, noted("train", compiled[train]))
    monkeypatch.setattr(host_rounds, "to_host", wait)
    run(host_rounds, on_host(federation), Model(MLP, federation.input_shape), ARMS["fedavg"], MAPS["chunked"], (3,))
    names = [name for name, _ in order]
    assert names[:3] == ["draw"] * 3 and names.count("train") == 3
    assert names[: names.index("to_host")].count("send") == 3
    assert {thread for name, thread in order if name == "send"} == {"cohorts_0"}


def test_cohorts_of_the_next_call_are_sent_ahead(federation):
    given = on_host(federation), Model(MLP, federation.input_shape), ARMS["fedavg"], MAPS["chunked"]
    static, algorithm, state, *data = start_rounds(*given, 3, 3, module=host_rounds)
    store = host_rounds.OnHost(static, algorithm, *data)
    copied = state._replace(server=jax.tree.map(jnp.copy, state.server))
    whole = host_rounds.run_rounds(static, algorithm, copied, *data, 3)
    for _ in range(3):
        state, _, _ = host_rounds.run_rounds(static, algorithm, state, *data, 1, store)
        assert sorted(store._sent) == [int(state.round), int(state.round) + 1]
    assert_same_bits(jax.device_get(state.server), jax.device_get(whole.state.server))


def test_an_error_of_the_thread_is_one_line(federation, monkeypatch):
    def fail(self, drawn):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(host_rounds.OnHost, "send", fail)
    with one_line(r"a cohort cannot be read \(Input/output error\)"):
        run(host_rounds, on_host(federation), Model(MLP, federation.input_shape), ARMS["fedavg"], MAPS["chunked"], (1,))


def test_ctrl_c_ends_the_wait_for_a_cohort(federation, monkeypatch, interruptible):
    hangs, main = threading.Event(), threading.main_thread().ident
    monkeypatch.setattr(host_rounds.OnHost, "send", lambda self, drawn: hangs.wait(60))
    timer = threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            run(host_rounds, on_host(federation), Model(MLP, federation.input_shape), ARMS["fedavg"], MAPS["chunked"])
    finally:
        hangs.set()
        timer.cancel()


def test_evaluation_of_examples_on_the_host(federation, monkeypatch):
    """Thirty examples: in three blocks of two batches of seven, the last one short, or in a single batch."""
    model, hosted = Model(MLP, federation.input_shape), on_host(federation).test
    variables = model.init(jax.random.key(0))
    monkeypatch.setattr(evaluations, "_BATCHES_SENT", 2)
    sent, evaluate_block = [], evaluations._evaluate_block
    monkeypatch.setattr(evaluations, "_evaluate_block", lambda *a: sent.append(a[2].inputs.shape) or evaluate_block(*a))
    before = evaluate_block._cache_size()
    for batch_size in (7, 512):
        expected = jax.device_get(evaluations.evaluate(model, variables, federation.test, batch_size))
        found = evaluations.evaluate(model, variables, hosted, batch_size)
        assert_same_bits(found[:3], expected[:3])
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.score == expected.score
    assert [shape[0] for shape in sent] == [14, 14, 14, 30]
    assert evaluate_block._cache_size() == before + 2
