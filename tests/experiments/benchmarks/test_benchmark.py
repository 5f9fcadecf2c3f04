"""The benchmark's command line and its arithmetic."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time

import jax
import numpy as np
import processes
import pytest
from conftest import cases
from small_studies import error_of
from unrendered import ROOT

from experiments import machine
from experiments.benchmarks import arguments, overheads, runner, suites, tables, timing, workloads
from experiments.benchmarks.runner import Measurement
from experiments.benchmarks.workloads import WORKLOADS, Training
from experiments.commands import benchmark
from fedjax_collapse.data import augment

pytestmark = pytest.mark.slow

CAN_PIN = machine.can_pin() and machine.num_cores() > 1


def test_a_report_is_complete_and_systems_do_the_same_work(tmp_path):
    """What the command line prints and writes for a workload, shrunk."""
    command = f"-m fedjax_collapse.command benchmark --only=mlp100 --scale=0.02 --rounds=5 --json={tmp_path}/r.json"
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written, versions = json.loads((tmp_path / "r.json").read_text()), {"jax", "torch", "pfl", "flwr", "ray"}
    assert set(written["environment"]) == {"device", "products", "cores", "python", "platform"} | versions
    ours, theirs = rows = written["rows"]
    ratio = [ours["ratio"][kind] for kind in ("min", "median", "max")]
    assert ratio[0] > 0 and sorted(ratio) == ratio and theirs["ratio"] is None
    shown = ["mlp100 (scale 0.02)", f"({ratio[0]:.2f}-", *(row[name] for row in rows for name in ("system", "layout"))]
    assert all(words in done.stdout for words in shown)
    assert [row["system"] for row in rows] == ["fedjax_collapse", "pytorch"]
    for row in rows:
        assert row["timed"] == ("a core each" if CAN_PIN else "alternately") and row["microseconds_added"] is None
        assert 0 < row["seconds_per_round"]["max"] < row["seconds_to_first_round"] + 60
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert np.isfinite(numbers).all() and min(numbers) > 0 and len(numbers) == 7 and row["padding_efficiency"] <= 1
        assert row["seconds_per_step"]["median"] == pytest.approx(1 / row["client_steps_per_second"])
    assert ours["cost"]["min"] == 1 / ratio[2]
    for rate in ("samples_per_second", "client_steps_per_second"):
        np.testing.assert_allclose(*(row[rate] * row["seconds_per_round"]["median"] for row in rows))
    np.testing.assert_allclose(*(row["final_loss"] for row in rows), rtol=0.02)


def measured(seconds, samples, steps=1):
    return Measurement(seconds, 1.0, samples, processed=400, steps=steps, loss=0.5, layout="", peak_memory_mib=1.0)


def timed(command):
    """The rows of a command line."""
    with timing.Timing(arguments.parse(command.split(), "")) as found:
        return list(found.rows())


def test_cost_is_seconds_per_sample_over_those_of_the_fewest_clients(monkeypatch):
    """Twice the seconds for four times as many samples are half; the spread is that of the repetitions."""

    def compare(arms, start, repetitions, cores):
        few, many, _ = arms
        return [(many, measured([2.0], 400), [0.5, 0.25, 1.0]), (few, measured([1.0], 100), [])]

    monkeypatch.setattr(runner, "compare", compare)
    first, second = timed("--suite=growth --only=mlp100")
    assert (first["system"], first["cost"]) == ("10", None)
    assert (second["system"], second["cost"]) == ("100", {"median": 0.5, "min": 0.25, "max": 1.0})


def test_systems_that_do_other_work_are_an_error(monkeypatch):
    def compare(arms, *rest):
        return [(arm, measured([1.0], 10 + i), []) for i, arm in enumerate(arms)]

    monkeypatch.setattr(runner, "compare", compare)
    message = r"mlp100: samples and steps differ between systems: \[\(10, 1\), \(11, 1\)\]"
    with pytest.raises(runner.Failed, match=message):
        timed("--only=mlp100 --turns")


@cases(
    ("mlp100", 1, (1797, 100, 100)),
    ("blazefl", 0.02, (1000, 20, 20)),
    ("pfl", 0.5, (25_000, 1000, 50)),
    ("table6", 1e-9, (2, 2, 2)),
)
def test_scale_keeps_clients_while_they_have_a_batch(name, scale, expected):
    sizes = dict(zip(("examples", "clients", "cohort"), expected, strict=True))
    assert WORKLOADS[name].scaled(scale) == dataclasses.replace(WORKLOADS[name], **sizes)


def arms_of(command):
    """The rounds of a suite in one process, by title."""
    return dict(overheads.arms(arguments.parse(command.split(), ""), jax.config.jax_num_cpu_devices))


def test_rounds_of_methods_and_augmentations_run(monkeypatch):
    assert {"FedAvg", "FedDecorr", "Scaffold", "TopK"} <= overheads.methods().keys()
    assert "Recalibrate" not in overheads.methods()  # the network has no BatchNorm
    assert overheads.methods(["byol"])["BYOL"].training.augmentation  # without, it would be rejected
    small = dataclasses.replace(workloads.OVERHEADS, network="mlp")  # compiled fast
    monkeypatch.setattr(overheads, "OVERHEADS", small)
    (of_methods,) = arms_of("--suite=methods --only=feddecorr --scale=0.05").values()
    assert list(of_methods) == ["FedAvg", "FedDecorr"]
    monkeypatch.setattr(overheads, "PRESETS", {"none": augment.PRESETS["none"], "flip": augment.flip})
    (of_augmentations,) = arms_of("--suite=augmentations --scale=0.05").values()
    for rounds, epochs in (of_methods["FedDecorr"], 10), (of_augmentations["flip"], 2):
        found = next(rounds)
        assert sum(found.samples) == epochs * 50 and np.isfinite(found.losses).all()


def test_a_prepared_run_stops_in_time_and_says_what_it_left_out(monkeypatch, tmp_path, capsys):
    """A program that never ends, a system that fails, and one that is timed."""
    for name in ("prepare", "compile_ours", "serve_system"):
        fake = dict(prepare="prepare_nothing", compile_ours="compile_slowly", serve_system="serve_auto")[name]
        monkeypatch.setattr(runner, name, getattr(processes, fake))
    path, start = tmp_path / "report.json", time.time()
    options = ["--systems=fedjax_collapse,pytorch", "--lowerings=auto,xla", "--seconds=20", f"--json={path}"]
    assert benchmark.main(["--suite=networks", "--only=small_cnn", *options]) == 0
    assert time.time() - start < 25
    report = json.loads(path.read_text())
    assert [(row["system"], row["timed"]) for row in report["rows"]] == [("pytorch", "alone")]
    assert report["left_out"].keys() == {"small_cnn auto", "small_cnn xla"}
    assert report["left_out"]["small_cnn xla"] == "not compiled in time"
    assert "fedjax_collapse is broken" in report["left_out"]["small_cnn auto"]
    assert "small_cnn xla: not compiled in time" in capsys.readouterr().out


class FakeLane:
    """Takes so many seconds a round, over the speed of the core that it is on or that the machine has by now."""

    def __init__(self, seconds, speed, rounds=2):
        self.name, self.rounds, self.seconds, self.sent = "fake", rounds, [], []
        self.connection, self._process = multiprocessing.Pipe()
        self._of_round, self._speed, self._core = seconds, speed, 0
        self.end, self.other = 0.0, self

    def pin(self, core):
        self._core = core

    def receive(self):
        return self.connection.recv()

    def send(self, line):
        self.sent.append(line)
        if line == "enough":
            while self.end < self.other.end:  # the faster one has gone on meanwhile
                self.run(self._took)
            return self._process.send(None)
        self.end, self._took = 0.0, self._of_round / self._speed(self._core)
        for _ in range(line):
            self.run(self._took)

    def run(self, seconds):
        self.end += seconds
        self._process.send((seconds, self.end))


def fake_pair(speed, **options):
    """Lanes of rounds of one and two seconds."""
    pair = [FakeLane(seconds, speed, **options) for seconds in (1.0, 2.0)]
    pair[0].other, pair[1].other = pair[::-1]
    return pair


def test_systems_at_the_same_time_are_compared_on_both_cores():
    """One core is three times as slow as the other, which cancels: in one half 2/3 times as fast, in the other 6."""
    ours, other = fake_pair({0: 1.0, 5: 1 / 3}.get)
    np.testing.assert_allclose(runner.speeds(ours, other, 3, (0, 5)), [2.0] * 3)
    assert ours.sent == other.sent == [2, "enough"] * 6
    np.testing.assert_allclose(sorted(set(ours.seconds)), [1.0, 3.0])


def test_alternating_systems_are_compared_while_the_machine_slows_down():
    """Each turn is 2 % slower than the one before; which system is first changes, so that neither gains overall."""
    turns = itertools.count()
    ours, other = fake_pair(lambda core: 0.98 ** next(turns))
    found = runner.speeds(ours, other, 4)
    np.testing.assert_allclose(found, [2 / 0.98, 2 * 0.98] * 2)
    assert ours.sent == [2, "enough"] * 4


@pytest.mark.skipif(not CAN_PIN, reason="processes cannot be pinned here")
def test_a_process_is_moved_to_a_core_with_what_it_says():
    with runner.Lane("it", processes.serve_one, (), {"IT": "1", "PYTHONPATH": "elsewhere"}, rounds=1) as it:
        for core in machine.cores()[:2]:
            it.pin(core)
            assert os.sched_getaffinity(it.process.pid) == {core}
        runner.run([it])
        found = it.finish()
    assert found.loss == 1 and found.seconds == [0.5] and found.seconds_to_first_round < 0
    assert found.layout == "elsewhere" and "elsewhere" not in sys.path
    assert "IT" not in os.environ and not it.process.is_alive()


@cases(
        ("--systems=fedjax_collapse,pfl,pytorch", {"a core each": "pytorch fedjax_collapse pfl"}),
        ("--systems=fedjax_collapse,pytorch --turns", {"alternately": "pytorch fedjax_collapse"}),
        ("--systems=flower,pytorch,pfl", {"a core each": "pytorch pfl", "alternately": "pytorch flower"}),
        ("--systems=fedjax_collapse", {"alone": "fedjax_collapse"}),
        ("--systems=fedjax_collapse --variant=other X=1", {"a core each": "fedjax_collapse other"}),
    )  # fmt: skip
def test_systems_are_pinned_where_a_core_is_enough(command, expected, monkeypatch):
    monkeypatch.setattr(machine, "can_pin", lambda: True)
    monkeypatch.setattr(machine, "cores", lambda: [3, 4, 7])
    asked = arguments.parse(re.split(" (?=--)", command), "")
    (*found,) = itertools.islice(suites.SUITES["workloads"].cases(asked), len(expected))
    assert {case.timed: " ".join(arm.name for arm in case.arms) for case in found} == expected
    assert all(case.cores == ((3, 7) if case.timed == "a core each" else ()) for case in found)
    monkeypatch.setattr(machine, "cores", lambda: [3])
    assert all(case.timed != "a core each" for case in suites.SUITES["workloads"].cases(asked))


def test_row_counts_true_samples_in_the_median_round():
    found = measured([2.0, 9.0, 1.0], 100, steps=8)._replace(processed=125)
    row = tables.row("a", "pytorch", found, "alone", [3.0, 2.0, 2.5])
    assert row["seconds_per_round"] == {"median": 2.0, "min": 1.0, "max": 9.0}
    assert row["seconds_per_step"] == {"median": 0.25, "min": 0.125, "max": 1.125}
    assert row["ratio"] == {"median": 2.5, "min": 2.0, "max": 3.0} and row["cost"]["max"] == 0.5
    assert (row["samples_per_second"], row["client_steps_per_second"], row["padding_efficiency"]) == (50, 4, 0.8)


def test_processed_samples_include_padding():
    from experiments.benchmarks.systems.engine_rounds import processed_samples

    sizes, once = np.array([1, 32, 33, 96]), Training(1, 32, 0.01, 0.9)  # 1, 1, 2 and 3 steps
    assert processed_samples(sizes, once, devices=1, clients_at_once=1, batch_parts=2) == (0.5 + 1 + 1.5 + 3) * 32
    assert processed_samples(sizes, once, devices=1, clients_at_once=1) == (1 + 1 + 2 + 3) * 32
    assert processed_samples(sizes, once, devices=1, clients_at_once=2) == (2 * 1 + 2 * 3) * 32
    assert processed_samples(sizes, once, devices=2, clients_at_once=4) == (4 * 0 + 4 * 3) * 32
    twice = once._replace(epochs=2)
    assert processed_samples(sizes, twice, devices=1, clients_at_once=1) == 2 * (1 + 1 + 2 + 3) * 32


@cases(
    ("--only=mlp100,nope", "mlp100, cnn100"),
    ("--suite=storage --only=disk", "--suite=storage has nothing"),
    ("--json=/no/such/folder/x.json", "/no/such/folder/x.json"),
    ("--rounds=4", "5"),
    ("--variant=", "NAME VARIABLE=VALUE"),
    ("--suite=growth --turns", "--suite=workloads only"),
    ("--layout=2x0", "2x1"),
    ("--scale=nan", "(0, 1]"),
    ("--suite=networks --scale=0.5", "--scale"),
    ("--systems=pytorch-graph", "--device=cpu: pytorch-graph runs on GPUs only"),
    ("--only=ditto20 --systems=fedjax_collapse,pfl", "pfl only average"),
    ("--suite=networks --device=gpu --seconds=200", "nvidia-smi finds no GPU"),
)
def test_wrong_argument_is_one_line_and_status_2(wrong, named, capsys):
    with pytest.raises(SystemExit) as error:
        benchmark.main(re.split(" (?=--)", wrong))
    assert error.value.code == 2
    error_of(capsys, named)


def test_failed_worker_is_shown_and_status_1(monkeypatch, capfd, tmp_path):
    (tmp_path / "flax.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "report.json"
    assert benchmark.main(["--only=mlp100", f"--json={path}"]) == 1
    assert "RuntimeError: broken" in capfd.readouterr().err
    assert not path.exists()
