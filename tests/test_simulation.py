"""Whole runs: what comes back, stopping and resuming with the same bits, damaged and foreign folders."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import assert_same_bits

from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, Model, UserError, engine, nn, simulate
from fedjax_collapse.simulation import rounds_kept

TRAINING = LocalTraining(epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9)
ARMS = {
    "fedavg": FedAvg(TRAINING, server_optimizer=None),
    "feddecorr": FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1, "official")}),
}


def run(federation, model, arm="fedavg", **kwargs):
    kwargs = {"rounds": 5, "checkpoint_every": 2, "client_map": engine.Sharded(2, engine.Chunked(1)), **kwargs}
    return simulate(federation, model, ARMS[arm], key=jax.random.key(0), **kwargs)


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "clients.npz", "spectra.npz")}


def test_what_comes_back(federation, model):
    seen = []
    result = run(
        federation, model, "feddecorr", participation=0.6, listener=lambda row, timing: seen.append((row, timing))
    )
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


def test_evaluation_matches_the_model(federation, model):
    """Accuracy and loss of the last row, recomputed from the final variables without the library's evaluation."""
    result = run(federation, model, rounds=2)
    images = (np.asarray(federation.test.images, np.float32) - 100) / 64
    variables = dict(params=result.variables.params, batch_stats=result.variables.batch_stats)
    logits = np.asarray(model.module.apply(variables, images, np.ones(30, bool), train=False).logits, np.float64)
    labels = np.asarray(federation.test.labels)
    assert result.metrics[-1]["accuracy"] == pytest.approx(np.mean(logits.argmax(1) == labels))
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(30), labels]
    assert result.metrics[-1]["loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_given_variables_are_used_and_kept(federation, model):
    variables = model.init(jax.random.key(5))
    first, second = (run(federation, model, rounds=1, variables=variables) for _ in range(2))
    assert_same_bits(first.variables, second.variables)
    other = run(federation, model, rounds=1)
    assert first.metrics != other.metrics


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("stop_after", [1, 3])
def test_stopped_and_resumed_equals_uninterrupted(federation, model, arm, stop_after, tmp_path):
    whole = run(federation, model, arm, folder=tmp_path / "whole", participation=0.6)
    count = iter(range(1, 9))
    stopped = run(
        federation, model, arm, folder=tmp_path / "parts", participation=0.6,
        should_stop=lambda: next(count) == stop_after,
    )  # fmt: skip
    assert stopped.rounds_done == stop_after == rounds_kept(tmp_path / "parts")[-1]
    resumed = run(federation, model, arm, folder=tmp_path / "parts", participation=0.6)
    assert_same_bits(resumed.variables, whole.variables)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert [row["round"] for row in resumed.timing] == [1, 2, 3, 4, 5]
    again = run(federation, model, arm, folder=tmp_path / "parts", participation=0.6)  # finished: nothing to do
    assert_same_bits(again.variables, whole.variables)


def test_rows_after_the_last_checkpoint_are_written_again(federation, model, tmp_path):
    """A run killed between checkpoints: rows beyond the checkpoint, the last one cut short."""
    whole = run(federation, model, folder=tmp_path / "whole")
    folder = tmp_path / "killed"
    count = iter(range(1, 9))
    run(federation, model, folder=folder, should_stop=lambda: next(count) == 3)
    rows = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(rows[3] + rows[4][:40])
    resumed = run(federation, model, folder=folder)
    assert_same_bits(resumed.variables, whole.variables)
    assert files(folder) == files(tmp_path / "whole")


_CHILD = """
import sys; sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
import jax, conftest, test_simulation
federation = conftest.federation.__wrapped__()
test_simulation.run(federation, conftest.model.__wrapped__(federation), "feddecorr", rounds=40,
                    folder=Path({folder!r}), checkpoint_every=4)
"""


def test_killed_and_resumed_equals_uninterrupted(federation, model, tmp_path):
    """``kill -9`` at some moment after the first checkpoint."""
    whole = run(federation, model, "feddecorr", rounds=40, folder=tmp_path / "whole", checkpoint_every=4)
    folder = tmp_path / "killed"
    here = Path(__file__).parent
    script = _CHILD.format(tests=str(here), root=str(here.parent), folder=str(folder))
    child = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not (folder / "checkpoints" / "8").exists():
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors
    assert 4 <= rounds_kept(folder)[-1] < 40
    resumed = run(federation, model, "feddecorr", rounds=40, folder=folder, checkpoint_every=4)
    assert_same_bits(resumed.variables, whole.variables)
    assert files(folder) == files(tmp_path / "whole")


def test_a_folder_of_another_model_is_refused(federation, model, tmp_path):
    run(federation, model, rounds=1, folder=tmp_path)
    before = files(tmp_path)
    other = Model(nn.SmallCNN(4, channels=(7,)), federation.image_shape)
    with pytest.raises(UserError, match=r"server/variables/.* is float32\[6\], this run needs float32\[7\]"):
        run(federation, other, folder=tmp_path)
    assert files(tmp_path) == before


def test_missing_metrics_are_noticed(federation, model, tmp_path):
    run(federation, model, rounds=2, folder=tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="its checkpoint is of round 2, its metrics end at 0"):
        run(federation, model, folder=tmp_path)


def test_nan_is_null(federation, model, tmp_path):
    exploding = FedAvg(TRAINING.replace(learning_rate=1e30))
    simulate(federation, model, exploding, rounds=1, key=jax.random.key(0), folder=tmp_path)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["train/task_loss"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds 0"),
        ({"participation": 0.0}, "participation 0 is outside"),
        ({"participation": 1.5}, "participation 1.5 is outside"),
        ({"evaluate_every": 0}, "evaluate_every 0"),
    ],
)
def test_wrong_arguments(federation, model, change, message):
    with pytest.raises(UserError, match=message):
        run(federation, model, **change)
