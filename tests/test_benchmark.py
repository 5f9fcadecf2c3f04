"""The benchmark's command line, its arithmetic, and that its PyTorch loops are right."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments import benchmark  # noqa: E402
from experiments.benchmarks import SYSTEMS, Setting, overheads, tables  # noqa: E402
from experiments.benchmarks.worker import Measurement  # noqa: E402
from experiments.benchmarks.workloads import BATCH_SIZE, LEARNING_RATE, MOMENTUM, WORKLOADS, Task  # noqa: E402
from fedjax_collapse import FedAvg  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the command line writes and prints for both workloads, shrunk."""
    path = tmp_path_factory.mktemp("benchmark") / "report.json"
    command = ["experiments/benchmark.py", "--workloads=mlp100,cnn100", f"--json={path}", "--scale=0.02"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done.stdout


def test_report_is_complete(report):
    numbers, printed = report
    assert set(numbers["environment"]) == {"device", "cores", "python", "jax", "torch", "platform"}
    systems = ["fedjax_collapse", *["pytorch"] * HAS_TORCH]
    assert [(r["workload"], r["system"]) for r in numbers["rows"]] == [(w, s) for w in WORKLOADS for s in systems]
    for row in numbers["rows"]:
        row = dict(row)
        assert row.pop("workload") in printed and row.pop("system") in printed and row.pop("layout") in printed
        seconds = row.pop("seconds_per_round")
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] < row["seconds_to_first_round"] + 60
        assert (row.pop("ratio") is not None) == HAS_TORCH
        assert set(row) == {
            *("samples_per_second", "client_steps_per_second", "padding_efficiency", "seconds_to_first_round"),
            *("total_seconds", "peak_memory_mib", "final_loss"),
        }
        assert all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in row.values())
        assert row["padding_efficiency"] <= 1 and row["total_seconds"] > row["seconds_to_first_round"]


def test_methods_are_compared_with_federated_averaging_in_the_same_turn(monkeypatch):
    """The order of calls, with rounds that only move a clock: FedAvg takes 1, 2, 3, ... and FedUV twice as much."""
    clock, calls, turn = [0.0], [], {}

    def rounds(algorithm, cores, scale):
        name = next(iter(algorithm.regularizers), "fedavg")

        def run():
            calls.append(name)
            turn[name] = turn.get(name, 0) + 1
            clock[0] += turn[name] * {"fedavg": 1.0, "feduv": 2.0}[name]

        return run

    monkeypatch.setattr(overheads, "_rounds", rounds)
    monkeypatch.setattr(overheads, "methods", lambda: {"FedAvg": FedAvg(), "FedUV": FedAvg(regularizers={"feduv": ()})})
    monkeypatch.setattr(overheads.time, "perf_counter", lambda: clock[0])
    rows = overheads.measure(5, cores=2)
    assert calls == ["fedavg", "feduv"] * 7
    assert rows[1]["overhead"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert rows[1]["seconds_per_round"] == {"median": 10.0, "min": 6.0, "max": 14.0}
    assert "FedUV   10 (6-14)          2.000 (2.000-2.000)" in tables.overhead_table(rows)


def test_every_method_runs_a_round():
    assert len(overheads.methods()) == 14
    overheads._rounds(overheads.methods()["MOON"], cores=1, scale=0.05)()


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
def test_systems_do_the_same_work(report):
    rows = report[0]["rows"]
    for ours, rival in zip(rows[::2], rows[1::2], strict=True):
        for rate in ("samples_per_second", "client_steps_per_second"):
            np.testing.assert_allclose(*(row[rate] * row["seconds_per_round"]["median"] for row in (ours, rival)))
        np.testing.assert_allclose(ours["final_loss"], rival["final_loss"], rtol=0.02)


def test_ratio_is_over_the_best_pytorch_loop_of_the_same_workload():
    ours = "fedjax_collapse"
    speeds = [("a", "pytorch", 4), ("a", ours, 10), ("a", "pytorch-dataloader", 2), ("b", ours, 7)]
    rows = [{"workload": w, "system": s, "samples_per_second": v} for w, s, v in speeds]
    assert [row["ratio"] for row in tables.add_ratios(rows)] == [1.0, 2.5, 0.5, None]


def test_row_counts_true_samples_in_the_median_round():
    rest = {"loss": 0.5, "layout": "", "peak_memory_mib": 1.0}
    measured = Measurement([2.0, 9.0, 1.0], 3.0, samples=100, processed=125, steps=8, **rest)
    row = tables.make_row("a", "pytorch", 20.0, measured)
    assert row["seconds_per_round"] == {"median": 2.0, "min": 1.0, "max": 9.0}
    assert (row["samples_per_second"], row["client_steps_per_second"], row["padding_efficiency"]) == (50, 4, 0.8)


def test_processed_samples_include_padding():
    from experiments.benchmarks.engine_rounds import processed_samples

    sizes = [1, BATCH_SIZE, BATCH_SIZE + 1, 3 * BATCH_SIZE]  # 1, 1, 2 and 3 steps
    assert processed_samples(sizes, devices=1, clients_at_once=1, halves=True) == (0.5 + 1 + 1.5 + 3) * BATCH_SIZE
    assert processed_samples(sizes, devices=1, clients_at_once=1) == (1 + 1 + 2 + 3) * BATCH_SIZE
    assert processed_samples(sizes, devices=1, clients_at_once=2) == (2 * 1 + 2 * 3) * BATCH_SIZE
    assert processed_samples(sizes, devices=2, clients_at_once=4) == (4 * 0 + 4 * 3) * BATCH_SIZE


def test_systems_without_pytorch(capsys):
    assert benchmark.available(list(SYSTEMS), has_torch=False) == ["fedjax_collapse"]
    assert "pytorch-dataloader" in capsys.readouterr().err
    assert benchmark.available(list(SYSTEMS), has_torch=True) == list(SYSTEMS)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "argument, named",
    [
        ("--workloads=mlp100,nope", "mlp100, cnn100"),
        ("--systems=nope", "fedjax_collapse, pytorch"),
        ("--json=/no/such/folder/x.json", "/no/such/folder/x.json"),
        ("--rounds=4", "5"),
        ("--layout=2x0", "2x1"),
    ],
)
def test_wrong_argument_is_one_line_and_status_2(argument, named, capsys):
    with pytest.raises(SystemExit) as error:
        benchmark.main([argument])
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert named in printed and printed.count("\n") == 1


def test_failed_worker_is_shown_and_status_1(capsys, tmp_path):
    path = tmp_path / "report.json"
    assert benchmark.main(["--workloads=mlp100", "--scale=0", f"--json={path}"]) == 1
    assert "UserError" in capsys.readouterr().err
    assert not path.exists()


@pytest.fixture
def small_task():
    """Three clients of at most a batch, so that the order of the examples does not matter."""
    rng = np.random.default_rng(0)
    shapes = [(128,), (64, 128), (128,), (128, 128), (10,), (128, 10)]
    weights = [rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    images, labels = rng.integers(0, 17, (60, 8, 8, 1)).astype(np.uint8), rng.integers(0, 10, 60)
    return Task(images, labels, 0.0, 16.0, np.split(rng.permutation(60), [10, 30]), weights)


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.needs_torch])
def test_pytorch_loops_equal_one_step_of_gradient_descent(name, small_task):
    import torch

    rounds = SYSTEMS[name].load()(WORKLOADS["mlp100"], small_task, Setting(cores=2, layout=None))
    reported = [next(rounds) for _ in range(3)]
    assert [sorted(r.samples) for r in reported] == [[10, 20, 30]] * 3 and sum(reported[0].steps) == 3
    losses = [np.average(r.losses, weights=r.samples) for r in reported]

    # With one full-batch step each, averaging by N_k is a step on all examples.
    weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in small_task.weights]
    images, labels = torch.tensor(small_task.images.reshape(60, -1) / 16.0), torch.tensor(small_task.labels)
    for loss in losses:
        hidden = (images @ weights[1] + weights[0]).relu()
        logits = (hidden @ weights[3] + weights[2]).relu() @ weights[5] + weights[4]
        expected = torch.nn.functional.cross_entropy(logits, labels)
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
        gradients = torch.autograd.grad(expected, weights)
        weights = [(w - LEARNING_RATE * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
def test_own_descent_equals_torch_sgd():
    import torch

    from experiments.benchmarks.pytorch_loops import _descend

    rng = np.random.default_rng(0)
    weight, mine, momenta = torch.ones(4, requires_grad=True), torch.ones(4), None
    optimizer = torch.optim.SGD([weight], LEARNING_RATE, MOMENTUM)
    for _ in range(4):
        gradient = torch.tensor(rng.normal(size=4), dtype=torch.float32)
        weight.grad = gradient.clone()
        optimizer.step()
        momenta = _descend([mine], [gradient.clone()], momenta)
    torch.testing.assert_close(mine, weight.detach())


def test_task_survives_its_file(small_task, tmp_path):
    small_task.save(tmp_path / "task.npz")
    loaded = Task.load(tmp_path / "task.npz")
    for first, second in zip(small_task, loaded, strict=True):
        many = isinstance(first, list)
        for a, b in zip(first, second, strict=True) if many else [(first, second)]:
            np.testing.assert_array_equal(a, b)
