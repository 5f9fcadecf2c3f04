"""Whole runs: what comes back, stopping and resuming with the same bits, damaged and foreign folders."""

import copy
import functools
import signal
import threading
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from conftest import assert_same_bits, cases
from small_studies import tree

import fedjax_collapse as fc
from fedjax_collapse import MOON, FedAvg, FedDC, FedMR, FedProx, Model, Participation, UserError, engine, nn, simulate
from fedjax_collapse.data import augment
from fedjax_collapse.methods.classifier.ccvr import CCVR
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.run import running, simulation
from fedjax_collapse.run.resumption import rounds_kept
from fedjax_collapse.schema.describe import describe

pytestmark = pytest.mark.slow

TRAINING = fc.LocalTraining(epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9)
ARMS = {
    "fedavg": FedAvg(TRAINING, server_optimizer=None),
    "feddecorr": FedAvg(TRAINING, {"feddecorr": fc.FedDecorr(0.1, "official")}),
    "remembering": FedAvg(
        TRAINING.replace(momentum_reset=False),
        {"fedmr": FedMR(1e-3, 0.5, lite=3), "fedproc": fc.FedProc(4.0), "moon": MOON()},
        private="Dense_0/bias",
    ),
}


def run(federation, model, arm="fedavg", **kwargs):
    kwargs = {"rounds": 5, "checkpoint_every": 2, "client_map": engine.Sharded(2, engine.Chunked(1)), **kwargs}
    return simulate(federation, model, ARMS[arm], **{"key": jax.random.key(0), **kwargs})


def files(folder: Path) -> dict[str, bytes]:
    names = ("metrics.jsonl", "clients.npz", "spectra.npz", "final.npz")
    return {name: (folder / name).read_bytes() for name in names}


def evaluate_in_numpy(federation, model, variables):
    """Accuracy and loss on the test set, without the library's evaluation."""
    images = (np.asarray(federation.test.inputs, np.float32) - 100) / 64
    logits = model.module.apply(variables._asdict(), images, np.ones(30, bool), train=False).logits
    logits, labels = np.asarray(logits, np.float64), np.asarray(federation.test.labels)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(30), labels]
    return np.mean(logits.argmax(1) == labels), losses.mean()


def test_what_comes_back(federation, model):
    seen = []
    options = dict(participation=0.6, listener=lambda *seen_now: seen.append(seen_now))
    result = run(federation, model, "feddecorr", **options)
    assert [row["round"] for row in result.metrics] == [1, 2, 3, 4, 5] == result.clients["round"].tolist()
    assert seen == list(zip(result.metrics, result.timing, strict=True))
    assert result.rounds_done == 5
    row = result.metrics[-1]
    assert 0 <= row["accuracy"] <= 1 and 1 <= row["effective_rank"] <= 6
    expected = {"task_loss", "accuracy", "feddecorr/correlation"}
    assert {name.removeprefix("train/") for name in row if name.startswith("train/")} == expected
    for name in expected:
        values = result.clients[name]
        assert values.shape == (5, 5) and (np.isfinite(values).sum(axis=1) == 3).all()
    assert result.spectra["server"].shape == result.spectra["local"].shape == (5, 6)
    weights = np.asarray(federation.ownership.sizes) * (result.clients["steps"][-1] > 0)
    mean = np.nansum(result.clients["task_loss"][-1] * weights) / weights.sum()
    assert row["train/task_loss"] == pytest.approx(mean, rel=1e-6)
    assert result.timing[-1]["samples"] == weights.sum()


EVALUATED = dict(methods={"feddyn": fc.FedDyn(0.1, evaluate="all")}), dict(methods={"feddc": FedDC(0.1)})


@pytest.mark.parametrize("algorithm", [FedAvg(TRAINING, **of) for of in (*EVALUATED, dict(private="batch_norm"))])
def test_the_variables_are_of_the_evaluated_model(federation, model, algorithm, tmp_path):
    """Which is not the server's own; the loss tells them apart. It is also what is left in the folder."""
    options = dict(rounds=3, key=jax.random.key(0), participation=0.6, folder=tmp_path)
    result = simulate(federation, model, algorithm, **options)
    row = result.metrics[-1]
    accuracy, loss = evaluate_in_numpy(federation, model, result.variables)
    assert row["server_accuracy"] == pytest.approx(accuracy)
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert (row["accuracy"] == row["server_accuracy"]) == (algorithm.private == "none")
    _, other_loss = evaluate_in_numpy(federation, model, result.state.server.variables)
    assert abs(other_loss - loss) > 1e-3
    assert_final(tmp_path, result.variables)


def assert_final(folder, variables):
    """``final.npz`` has these variables, by path, and nothing else."""
    leaves = jax.tree.leaves_with_path(variables._asdict())
    expected = {"/".join(entry.key for entry in path): np.asarray(leaf) for path, leaf in leaves}
    with np.load(folder / "final.npz") as file:
        assert set(file.files) == set(expected) and "params/Conv_0/kernel" in expected
        for name, leaf in expected.items():
            assert file[name].dtype == leaf.dtype
            np.testing.assert_array_equal(file[name], leaf)


@cases(("fedavg", 3), ("remembering", 1))
def test_stopped_and_resumed_equals_uninterrupted(arm, stop_after, federation, model, tmp_path):
    """Also in the virtual seconds, which count on."""
    rule = Participation(0.6, clock=engine.Clock(0.1, step_spread=1.0, upload_seconds=0.3, deadline=0.7))
    whole = run(federation, model, arm, folder=tmp_path / "whole", participation=rule)
    seconds = [whole.metrics[-1][f"virtual/{name}"] for name in ("round_seconds", "seconds")]
    assert 0 < seconds[0] < seconds[1]
    count, options = iter(range(1, 9)), dict(folder=tmp_path / "parts", participation=rule)
    stopped = run(federation, model, arm, **options, should_stop=lambda: next(count) == stop_after)
    assert stopped.rounds_done == stop_after == rounds_kept(tmp_path / "parts")[-1]
    assert not (tmp_path / "parts" / "final.npz").exists()
    resumed = run(federation, model, arm, **options)
    assert_same_bits(resumed.variables, whole.variables)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert [row["round"] for row in resumed.timing] == [1, 2, 3, 4, 5]
    again = run(federation, model, arm, **options)  # finished: nothing to do
    assert_same_bits(again.variables, whole.variables)
    assert_final(tmp_path / "parts", again.variables)


@cases(("fedavg", "device"), ("remembering", "host"))
def test_stopped_between_evaluations_and_resumed(arm, storage, federation, model, tmp_path, monkeypatch):
    """A run that is asked every few seconds stops before the next evaluation, once or again and again."""
    options = dict(evaluate_every=3, checkpoint_every=3, participation=0.6, storage=storage)
    whole = run(federation, model, arm, folder=tmp_path / "whole", **options)
    for module in (simulation, running):
        monkeypatch.setattr(module, "PATIENCE", 0.0)
    for stops, rounds in (((2,), (1,)), ((3, 2), (2, 3))):
        folder = tmp_path / "-".join(map(str, stops))
        for stop_after, done in zip(stops, rounds, strict=True):
            answers = iter([False] * (stop_after - 1) + [True])
            stopped = run(federation, model, arm, folder=folder, should_stop=answers.__next__, **options)
            assert stopped.rounds_done == done == rounds_kept(folder)[-1]
            assert [row["round"] for row in stopped.metrics] == [3] * (done >= 3)
        resumed = run(federation, model, arm, folder=folder, **options)
        assert_same_bits(resumed.variables, whole.variables)
        assert files(folder) == files(tmp_path / "whole")
        assert resumed.timing[0]["samples"] <= whole.timing[0]["samples"]


def test_all_clients_measure_once_before_an_evaluation(federation, model, monkeypatch):
    """Not whenever it was asked whether to stop, which depends on the machine."""
    monkeypatch.setattr(running, "PATIENCE", 0.0)
    calls, advance = [], engine.Program.advance
    monkeypatch.setattr(engine.Program, "advance", lambda self, count: calls.append(count) or advance(self, count))
    algorithm = FedAvg(TRAINING, {"ccvr": CCVR(when="end", clients="all")})
    simulate(federation, model, algorithm, rounds=5, key=jax.random.key(0), evaluate_every=3)
    assert calls == [3, 2]


WIDER = Model(nn.SmallCNN(4, channels=(7,)), (8, 8, 2))


def test_folder_without_run_json_of_another_model_is_rejected(federation, model, tmp_path):
    run(federation, model, rounds=1, folder=tmp_path)
    (tmp_path / "run.json").unlink()
    before = files(tmp_path)
    with (
        pytest.warns(UserWarning, match=r"run.json: is missing, so it is not checked whether this run is the folder's"),
        pytest.raises(UserError, match=r"server/variables/.* is float32\[6\], this run needs float32\[7\]"),
    ):
        run(federation, WIDER, folder=tmp_path)
    assert files(tmp_path) == before


def rolled(federation):
    """The same sizes of clients, of other examples."""
    parts = federation.owned_rows()
    whole = np.roll(np.concatenate(parts), 1)
    return federation.with_partition(np.split(whole, np.cumsum([len(rows) for rows in parts])[:-1]))


def darker(federation):
    """One pixel of one image."""
    return federation._replace(train=federation.train._replace(inputs=federation.train.inputs.at[3, 2, 1, 0].add(1)))


ANOTHER = {
    "epochs": (lambda of: dict(algorithm=FedAvg(TRAINING.replace(epochs=2))), "epochs is 1 there, 2 here"),
    "partition": (lambda of: dict(federation=rolled(of["federation"])), r"partition is \w{64} there, \w{64} here"),
    "key": (lambda of: dict(key=jax.random.key(1)), r"key is \[0, 0\] there, \[0, 1\] here"),
    "participation": (lambda of: dict(participation=0.6), "participation.fraction is 1.0 there, 0.6 here"),
    "variables": (lambda of: dict(variables=of["model"].init(jax.random.key(5))), r"variables is None there, \w{64}"),
    "data": (lambda of: dict(federation=darker(of["federation"])), r"data is \w{64} there, \w{64} here"),
    "client to watch": (lambda of: dict(watch=(2,)), "watch is one there"),
    "measurements": (lambda of: dict(measurements={"norm": len}), "measurements.norm is absent there"),
    "model": (lambda of: dict(model=WIDER), r"model.module.channels is \[6\] there, \[7\] here"),
}  # fmt: skip


@pytest.fixture(scope="module")
def done_folder(federation, model, tmp_path_factory):
    """Of three finished rounds."""
    folder = tmp_path_factory.mktemp("done")
    run(federation, model, rounds=3, folder=folder)
    return folder


@cases(*((case, 3) for case in ANOTHER), ("partition", 5))
def test_a_folder_of_another_run_is_refused(case, rounds, federation, model, done_folder):
    """In one line that says what is different; the folder stays as it is, whether there were rounds left or not."""
    change, message = ANOTHER[case]
    usual = dict(federation=federation, model=model, algorithm=ARMS["fedavg"], key=jax.random.key(0), participation=1.0)
    usual["client_map"] = engine.Sharded(2, engine.Chunked(1))
    before = tree(done_folder)
    with pytest.raises(UserError, match=message) as error:
        simulate(**usual | change(usual), rounds=rounds, folder=done_folder)
    assert f"{done_folder} holds another run: " in str(error.value) and str(error.value).endswith("; use a new folder")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert tree(done_folder) == before


class Reversed(Participation):
    def draw(self, key, sizes, cohort_size):
        return super().draw(key, sizes, cohort_size)[::-1]


class FedOther(FedProx):
    def penalty(self, view):
        return {}


def augmented(*functions):
    return [FedAvg(TRAINING.replace(augmentation=function)) for function in functions]


def of_optimizer(constructor, **numbers):
    return FedAvg(TRAINING, server_optimizer=jax.tree_util.Partial(constructor, 1.0, **numbers))


@cases(
    (Participation(0.5), Reversed(0.5)),
    (FedAvg(TRAINING, {"term": FedProx(0.1)}), FedAvg(TRAINING, {"term": FedOther(0.1)})),
    (of_optimizer(optax.sgd, momentum=0.5), of_optimizer(optax.sgd, momentum=0.6)),
    (fc.CLASSIFICATION, fc.REGRESSION),
    (Model(nn.MLP(4), (8, 8, 2)), Model(nn.MLP(4), (8, 8, 2), orthogonal_head)),
    augmented(*(functools.partial(augment.crop, padding=padding) for padding in (0, 4))),
    augmented(augment.PRESETS["moon_cifar10"], augment.PRESETS["feduv_cifar10"]),
)
def test_other_records_are_described_otherwise(one, other):
    """So that one does not continue in the folder of the other."""
    assert describe(one) == describe(copy.deepcopy(one)) != describe(other)


def test_a_lambda_is_described_by_what_it_does():
    """Not by where its inner code lies or how its sets are ordered: both differ from process to process."""
    source = "lambda rates: [rate for rate in rates if rate in {0, 8}] or (lambda rate: rate + 1)"
    first, second = eval(source), eval(source.replace("0, 8", "8, 0"))
    assert repr(first.__code__.co_consts) != repr(second.__code__.co_consts)
    assert describe(first) == describe(second)
    others = [eval(source.replace("8", "9")), eval(source.replace("+ 1", "+ 2"))]
    assert all(describe(other) != describe(first) for other in others)


def test_more_rounds_and_other_checkpoints_are_the_same_run(federation, model, tmp_path):
    """Another layout and storage too, of examples and of states of all kinds at clients, which change speed alone."""
    whole = run(federation, model, "remembering", folder=tmp_path / "whole")
    run(federation, model, "remembering", rounds=2, folder=tmp_path / "more")
    assert_final(tmp_path / "more", run(federation, model, "remembering", rounds=2).variables)
    more = run(federation, model, "remembering", rounds=3, checkpoint_every=1, folder=tmp_path / "more")
    assert more.rounds_done == 3 and rounds_kept(tmp_path / "more") == (2, 3)
    hosted = federation._replace(train=jax.tree.map(np.asarray, federation.train))
    more = run(hosted, model, "remembering", checkpoint_every=3, storage="host", folder=tmp_path / "more")
    assert_same_bits(more.variables, whole.variables)
    assert files(tmp_path / "more") == files(tmp_path / "whole")
    fewer = run(federation, model, "remembering", rounds=2, folder=tmp_path / "more")  # what is done stays done
    assert fewer.rounds_done == 5
    assert_same_bits(fewer.variables, whole.variables)


def interrupting(*rounds):
    """A listener that presses Ctrl-C after a round, as often as the round is named."""

    def press(row, timing):
        for _ in range(rounds.count(row["round"])):
            signal.raise_signal(signal.SIGINT)

    return press


def test_interrupting_without_a_folder_returns_what_is_done(federation, model, interruptible):
    partial = run(federation, model, listener=interrupting(2))
    assert partial.rounds_done == 2
    assert_same_bits(partial.variables, run(federation, model, rounds=2).variables)


def test_a_handler_of_the_callers_stays(federation, model, interruptible):
    """And in another thread, which may have none, a run goes as ever."""
    received, results = [], []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        result = run(federation, model, rounds=2, listener=interrupting(1))
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert received == [signal.SIGINT] and result.rounds_done == 2
    thread = threading.Thread(target=lambda: results.append(run(federation, model, rounds=2)))
    thread.start()
    thread.join()
    assert_same_bits(results[0].variables, result.variables)
