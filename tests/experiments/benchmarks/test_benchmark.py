"""The benchmark's command line and its arithmetic."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from experiments.benchmarks import (  # noqa: E402
    SYSTEMS,
    adapter_rounds,
    arguments,
    engine_rounds,
    environment,
    growth,
    lanes,
    networks,
    overheads,
    storage_rounds,
    tables,
    worker,
)
from experiments.benchmarks.worker import Measurement  # noqa: E402
from experiments.benchmarks.workloads import WORKLOADS, Training  # noqa: E402
from experiments.commands import benchmark  # noqa: E402
from experiments.study import machine  # noqa: E402
from fedjax_collapse import FedAvg, FedUV, LocalTraining  # noqa: E402
from fedjax_collapse.core.records import UserError  # noqa: E402
from fedjax_collapse.data import augment  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
CAN_PIN = machine.can_pin() and machine.num_cores() > 1


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the command line prints and writes for a workload, shrunk."""
    folder = tmp_path_factory.mktemp("benchmark")
    files = f"--json={folder}/report.json", f"--figure={folder}/report.svg", f"--profile={folder}/trace"
    command = ["-m", "fedjax_collapse.command", "benchmark", "--workloads=mlp100", "--scale=0.02", "--rounds=5", *files]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.fixture(scope="module")
def rows(report):
    return json.loads((report[1] / "report.json").read_text())["rows"]


def test_report_is_complete(report, rows):
    printed, folder = report
    versions = {"jax", "torch", "pfl", "flwr", "ray"}
    written = json.loads((folder / "report.json").read_text())["environment"]
    assert set(written) == {"device", "products", "cores", "python", "platform"} | versions
    assert [row["system"] for row in rows] == ["fedjax_collapse", *["pytorch"] * HAS_TORCH]
    assert [row["ratio"] is not None for row in rows] == [True, False][2 - len(rows) :]
    for row in rows:
        row = dict(row)
        if (ratio := row.pop("ratio")) is not None:
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"] and f"({ratio['min']:.2f}-" in printed
        assert row.pop("timed") == ("alone" if len(rows) == 1 else "a core each" if CAN_PIN else "alternately")
        assert (row.pop("workload"), row.pop("scale")) == ("mlp100", 0.02) and "mlp100 (scale 0.02)" in printed
        assert row.pop("system") in printed and row.pop("layout") in printed
        seconds = row.pop("seconds_per_round")
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] < row["seconds_to_first_round"] + 60
        assert set(row) == {
            *("samples_per_second", "client_steps_per_second", "padding_efficiency", "seconds_to_first_round"),
            *("peak_memory_mib", "final_loss"),
        }
        assert all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in row.values())
        assert row["padding_efficiency"] <= 1


def test_figure_and_trace_are_written(report):
    assert "</svg>" in (report[1] / "report.svg").read_text()
    assert list((report[1] / "trace" / "mlp100").rglob("*.xplane.pb"))


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
def test_systems_do_the_same_work(rows):
    ours, other = rows
    for rate in ("samples_per_second", "client_steps_per_second"):
        np.testing.assert_allclose(*(row[rate] * row["seconds_per_round"]["median"] for row in (ours, other)))
    np.testing.assert_allclose(ours["final_loss"], other["final_loss"], rtol=0.02)


def test_every_workload_has_its_network_on_both_sides():
    for workload in WORKLOADS.values():
        outputs = {"next_word": networks.IDS, "multi_label": networks.LABELS}.get(workload.task, networks.CLASSES)
        assert networks.linen(workload.network).num_classes == outputs
        assert networks.pytorch(workload.network, workload.input_shape).training


@pytest.mark.long
def test_growth_has_a_row_for_each_number_of_clients(monkeypatch, capsys):
    monkeypatch.setattr(growth, "ROUNDS", {8: 2, 24: 2})
    assert benchmark.main(["--growth=mlp100", "--repetitions=3"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:2] == ["workload", "clients"]
    assert [row[:2] for row in rows] == [["mlp100", "8"], ["mlp100", "24"]]


def test_cost_is_seconds_per_sample_over_those_of_the_fewest_clients(monkeypatch):
    """Twice the seconds for four times as many samples are half; the spread is that of the repetitions."""
    found = dict(seconds_to_first_round=1.0, processed=400, steps=1, loss=0.5, layout="", peak_memory_mib=1.0)
    many, few = found | dict(samples=400, seconds=[2.0]), found | dict(samples=100, seconds=[1.0])
    compared = [(100, many, [0.5, 0.25, 1.0]), (10, few, [])]
    monkeypatch.setattr(lanes, "compare", lambda names, start, repetitions: compared)
    monkeypatch.setattr(benchmark, "_worker", lambda title, command, **options: None)
    first, second = benchmark.run_growth(arguments.parse(["--growth=mlp100"], ""))
    assert (first["clients"], first["cost"]) == (10, None)
    assert (second["clients"], second["cost"]) == (100, {"median": 0.5, "min": 0.25, "max": 1.0})


def test_growing_clients_are_equally_large_and_share_a_pool():
    small, large = (growth.make_task(WORKLOADS["mlp100"], clients, 1) for clients in (3, 40))
    assert len(small.inputs) == len(large.inputs) == 1797
    assert [len(set(part)) for part in small.parts] == [growth.EXAMPLES] * 3 and len(large.parts) == 40
    np.testing.assert_array_equal(small.cohorts, [[0, 1, 2]])


@pytest.mark.parametrize(
    "name, scale, expected",
    [
        ("mlp100", 1, (1797, 100, 100)),
        ("mlp100", 0.5, (898, 49, 49)),  # 18 examples each, as before: less than a batch
        ("cnn100", 0.02, (200, 6, 6)),
        ("blazefl", 0.1, (5000, 100, 100)),  # a batch of 50 each
        ("blazefl", 0.02, (1000, 20, 20)),
        ("pfl", 0.5, (25_000, 1000, 50)),
        ("pfl", 0.1, (5000, 500, 25)),
        ("table6", 0.02, (1000, 10, 10)),
        ("table6", 1e-9, (2, 2, 2)),
    ],
)
def test_scale_keeps_clients_while_they_have_a_batch(name, scale, expected):
    scaled = WORKLOADS[name].scaled(scale)
    assert (scaled.examples, scaled.clients, scaled.cohort) == expected
    assert dataclasses.replace(WORKLOADS[name], examples=0, clients=0, cohort=0) == dataclasses.replace(
        scaled, examples=0, clients=0, cohort=0
    )


def _replace_rounds_by_a_clock(monkeypatch, seconds_of):
    """The order of calls of rounds that take the algorithm's seconds, then twice as long, three times and so on."""
    clock, calls = [0.0], []

    def rounds(algorithm, cores, scale, like, device):
        def run():
            seconds = seconds_of(algorithm)
            calls.append(seconds)
            clock[0] += seconds * calls.count(seconds)

        return run

    monkeypatch.setattr(overheads, "_rounds", rounds)
    monkeypatch.setattr(overheads.time, "perf_counter", lambda: clock[0])
    return calls


def test_methods_are_compared_with_federated_averaging_in_adjacent_rounds(monkeypatch):
    calls = _replace_rounds_by_a_clock(monkeypatch, lambda algorithm: 1.0 + len(algorithm.methods))
    monkeypatch.setattr(
        overheads, "methods", lambda names, like: {"FedAvg": FedAvg(), "FedUV": FedAvg(methods={"feduv": FedUV()})}
    )
    done = []
    found = overheads.measure("methods", 5, jax.config.jax_num_cpu_devices, advance=done.append)
    assert calls == [1.0, 2.0] * 7 and done == [16] * 16
    assert found[1]["overhead"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert found[1]["seconds_per_round"] == {"median": 10.0, "min": 6.0, "max": 14.0}
    assert "FedUV   10 (6-14)          2.000 (2.000-2.000)" in tables.table("methods", found)


def test_augmentations_cost_what_they_add_to_a_round_per_image(monkeypatch, capsys, tmp_path):
    seconds = {None: 1.0, augment.flip: 4.0}
    calls = _replace_rounds_by_a_clock(monkeypatch, lambda algorithm: seconds[algorithm.training.augmentation])
    monkeypatch.setattr(overheads, "augmentations", lambda: {"none": None, "flip": augment.flip})
    monkeypatch.setattr(benchmark, "_worker", lambda title, name, **options: worker.main(name, json.dumps(options)))
    monkeypatch.setattr(machine, "num_cores", lambda: jax.config.jax_num_cpu_devices)
    path = tmp_path / "report.json"
    assert benchmark.main(["--augmentations", "--rounds=5", "--scale=0.3", f"--json={path}"]) == 0
    none, flip = json.loads(path.read_text())["rows"]
    assert calls == [1.0, 4.0] * 7 and none["microseconds_per_image"] == 0
    assert flip["overhead"] == {"median": 4.0, "min": 4.0, "max": 4.0}
    assert flip["microseconds_per_image"] == 1e6 * (5 * 4.0 - 5 * 1.0) / (2 * 300)  # two epochs of 300 images
    assert "flip          20 (12-28)         4.000 (4.000-4.000)  25000.0" in capsys.readouterr().out


def test_equal_augmentations_are_one_and_those_of_other_images_none(monkeypatch):
    def of_large_images(image, key):
        raise UserError("too small")

    none, flip, crop = augment.PRESETS["none"], augment.flip, augment.crop
    others = {"large": of_large_images, "half": lambda image, key: image[::2]}
    monkeypatch.setattr(overheads, "PRESETS", {"a": flip, "off": none, **others, "b": crop, "c": flip, "none": none})
    found = overheads.augmentations()
    assert list(found.items()) == [("off, none", None), ("a, c", flip), ("b", crop)]


def test_augmentations_of_the_presets_are_distinct_programs():
    image, key, found = np.zeros((32, 32, 3), np.float32), jax.random.key(0), overheads.augmentations()
    names, *augmented = found
    programs = {jax.jit(found[name]).lower(image, key).as_text() for name in augmented}
    assert names.startswith("none, ") and found[names] is None
    assert len(programs) == len(augmented) > 5 and "moon_cifar10, fedmr_cifar10" in augmented


def test_rounds_of_methods_and_augmentations_run(monkeypatch):
    assert {"FedAvg", "FedDecorr", "Scaffold", "TopK"} <= overheads.methods().keys()
    assert "Recalibrate" not in overheads.methods()  # the network has no BatchNorm
    augmented = FedAvg(overheads.AUGMENTED.replace(augmentation=augment.flip))
    compiled_fast = dataclasses.replace(WORKLOADS["cnn100"], network="mlp")
    monkeypatch.setitem(WORKLOADS, "cnn100", compiled_fast)
    for algorithm in overheads.methods()["FedDecorr"], augmented:
        overheads._rounds(algorithm, cores=1, scale=0.05)()


def test_storages_are_compared_with_the_host(monkeypatch):
    for name, value in dict(
        CLIENTS=30, COHORT=3, ROUNDS_AT_ONCE=2, STORAGES=("host", "disk, cold", "disk, unverified")
    ).items():
        monkeypatch.setattr(storage_rounds, name, value)
    found = overheads.measure("storage", 5, jax.config.jax_num_cpu_devices)
    assert [row["storage"] for row in found] == ["host", "disk, cold", "disk, unverified"]
    assert found[0]["overhead"] == {"median": 1.0, "min": 1.0, "max": 1.0} and found[1]["overhead"]["median"] > 0
    assert tables.table("storage", found).splitlines()[-1].startswith("disk")


@pytest.mark.long
def test_adapters_are_compared_with_all_weights(monkeypatch):
    monkeypatch.setattr(adapter_rounds, "CASES", [adapter_rounds.Case("micro", 16, 2)])
    found = overheads.measure("adapters", 5, jax.config.jax_num_cpu_devices)
    assert [row["trained"] for row in found] == ["adapters", "all weights"]
    assert found[0]["overhead"]["median"] == 1 and found[1]["overhead"]["median"] > 0
    assert (
        tables.table("adapters", found).splitlines()[-1].startswith("micro, 5 tokens, batch 2, 1 at once  all weights")
    )


def test_a_gpu_has_each_case_of_adapters_once():
    """Its layout is the library's, in which cases that differ in the clients at once are the same."""
    assert adapter_rounds.cases("cpu") == list(adapter_rounds.CASES)
    found = adapter_rounds.cases("gpu")
    assert [case[:3] for case in found] == list(dict.fromkeys(case[:3] for case in adapter_rounds.CASES))
    assert {case.clients_at_once for case in found} == {10}


def test_methods_are_timed_like_a_workload(monkeypatch):
    small = dataclasses.replace(WORKLOADS["ditto20"].scaled(0.1), network="mlp", training=Training(2, 5, 0.1, 0.5))
    monkeypatch.setitem(WORKLOADS, "ditto20", small)
    found = overheads.methods(["ditto"], "ditto20")
    assert list(found) == ["FedAvg", "Ditto"]
    assert {algorithm.training for algorithm in found.values()} == {LocalTraining(2, 5, 0.1, 0.5)}
    record = overheads._rounds(found["Ditto"], cores=1, scale=1.0, like="ditto20")()
    sizes = np.array([len(part) for part in small.split(small.data(small.examples).labels, small.clients)])
    np.testing.assert_array_equal(np.asarray(record.steps)[0], 2 * -(-sizes // 5))


class FakeLane:
    """Takes so many seconds a round, over the speed of the core that it is on or that the machine has by now."""

    def __init__(self, seconds, speed, inbox, rounds=2):
        self.name, self.inbox, self.rounds, self.seconds, self.sent = "fake", inbox, rounds, [], []
        self._of_round, self._speed, self._core = seconds, speed, 0
        self.end, self.other = 0.0, self

    def pin(self, core):
        self._core = core

    def send(self, line):
        self.sent.append(line)
        if line == "enough":
            while self.end < self.other.end:  # the faster one has gone on meanwhile
                self.run(self._took)
            self.inbox.put((self, {}))
            return
        self.end, self._took = 0.0, self._of_round / self._speed(self._core)
        for _ in range(int(line)):
            self.run(self._took)

    def run(self, seconds):
        self.end += seconds
        self.inbox.put((self, {"seconds": seconds, "end": self.end}))


def fake_pair(speed, **options):
    """Lanes of rounds of one and two seconds."""
    inbox = queue.SimpleQueue()
    pair = [FakeLane(seconds, speed, inbox, **options) for seconds in (1.0, 2.0)]
    pair[0].other, pair[1].other = pair[::-1]
    return pair


def test_systems_at_the_same_time_are_compared_on_both_cores():
    """One core is three times as slow as the other, which cancels: in one half 2/3 times as fast, in the other 6."""
    ours, other = fake_pair({0: 1.0, 5: 1 / 3}.get)
    np.testing.assert_allclose(lanes.speeds(ours, other, 3, (0, 5)), [2.0] * 3)
    assert ours.sent == other.sent == ["2", "enough"] * 6
    np.testing.assert_allclose(sorted(set(ours.seconds)), [1.0, 3.0])


def test_a_last_round_that_ends_just_after_the_other_system_counts():
    """It was told to stop right then, and its own last round had ended a little before."""
    ours, other = fake_pair(lambda core: 1.0, rounds=1)
    tell = ours.send

    def stop_at_once(line):
        tell(line) if line != "enough" else ours.inbox.put((ours, {}))

    ours.send = stop_at_once
    np.testing.assert_allclose(lanes.speeds(ours, other, 3, (0, 1)), [2.0] * 3)


def test_rounds_that_end_after_the_other_system_do_not_count():
    """It had the machine alone."""
    ours, other = fake_pair(lambda core: 1.0)
    tell = ours.send

    def alone_at_the_end(line):
        if line == "enough":
            for seconds in [1.0, 1.0, *[0.5] * 9]:  # two beside the other one, whose rounds take four seconds
                ours.run(seconds)
        tell(line)

    ours.send = alone_at_the_end
    np.testing.assert_allclose(lanes.speeds(ours, other, 3, (0, 1)), [2.0] * 3)
    assert 0.5 in ours.seconds


def test_alternating_systems_are_compared_while_the_machine_slows_down():
    """Each turn is 2 % slower than the one before; which system is first changes, so that neither gains overall."""
    turns = itertools.count()
    ours, other = fake_pair(lambda core: 0.98 ** next(turns))
    found = lanes.speeds(ours, other, 4)
    np.testing.assert_allclose(found, [2 / 0.98, 2 * 0.98] * 2)
    assert ours.sent == ["2", "enough"] * 4


PROCESS = """
import json, sys
print(json.dumps({"first_round_at": 0}), flush=True)
for line in sys.stdin:
    if line != "enough\\n":
        print(json.dumps({"seconds": 0.5, "end": 1.0}), flush=True)
        {fault}
    else:
        print("{}", flush=True)
print('{"loss": 1}', flush=True)
"""


def lane(inbox, fault="pass"):
    return lanes.Lane("it", [sys.executable, "-c", PROCESS.replace("{fault}", fault)], os.environ, 1, inbox)


@pytest.mark.skipif(not CAN_PIN, reason="processes cannot be pinned here")
def test_a_process_is_moved_to_a_core_with_what_it_says():
    inbox = queue.SimpleQueue()
    with lane(inbox) as it:
        for core in machine.cores()[:2]:
            it.pin(core)
            assert os.sched_getaffinity(it._process.pid) == {core}
        lanes.run([it])
        found = it.finish()
    assert found["loss"] == 1 and found["seconds"] == [0.5] and found["seconds_to_first_round"] < 0


def test_a_failed_process_is_reported():
    with (
        pytest.raises(lanes.Failed, match=r"broken\n.*it failed with exit status 1"),
        lane(queue.SimpleQueue(), "sys.exit('broken')") as it,
    ):
        lanes.run([it, it])


def test_rounds_are_served_until_there_were_enough():
    """Three that were asked for, and more until the order to stop is read; the fourth is the one that is wanted."""
    said, has_five = [], threading.Event()

    def say(message):
        said.append(message)
        if len(said) == 1 + 5:  # behind the first line one after each round
            has_five.set()

    def orders():
        yield "3\n"
        has_five.wait()
        yield "enough\n"

    assert worker.serve(itertools.count(1), 4, orders(), say) == worker.WARM_UP + 4
    assert said[0].keys() == {"first_round_at"} and said[-1] == {}
    assert all(message.keys() == {"seconds", "end"} for message in said[1:-1])


@pytest.mark.parametrize(
    "command, expected",
    [
        ("--systems=fedjax_collapse,pfl,pytorch", {"a core each": "pytorch fedjax_collapse pfl"}),
        ("--systems=fedjax_collapse,pytorch --turns", {"alternately": "pytorch fedjax_collapse"}),
        ("--systems=fedjax_collapse,pytorch --layout=2x1", {"alternately": "pytorch fedjax_collapse"}),
        ("--systems=fedjax_collapse,flower", {"alternately": "fedjax_collapse flower"}),
        ("--systems=flower,pytorch,pfl", {"a core each": "pytorch pfl", "alternately": "pytorch flower"}),
        ("--systems=fedjax_collapse", {"alone": "fedjax_collapse"}),
        ("--systems=fedjax_collapse --variant=other X=1", {"a core each": "fedjax_collapse other"}),
    ],
)  # fmt: skip
def test_systems_are_pinned_where_a_core_is_enough(command, expected, monkeypatch):
    monkeypatch.setattr(machine, "can_pin", lambda: True)
    monkeypatch.setattr(machine, "cores", lambda: [3, 4, 7])
    asked = arguments.parse(re.split(" (?=--)", command), "")
    found = benchmark.ways(asked, [*asked.systems, *asked.variants])
    assert {way.name: " ".join(names) for way, names in found} == expected
    assert all(way.cores == ((3, 7) if way.name == "a core each" else ()) for way, _ in found)
    monkeypatch.setattr(machine, "cores", lambda: [3])
    assert all(way.name != "a core each" for way, _ in benchmark.ways(asked, [*asked.systems, *asked.variants]))


def test_a_variant_is_our_engine_with_other_variables():
    asked = arguments.parse(["--variant=fast XLA_FLAGS='--a=1 --b=+x' JAX_ENABLE_X64=1", "--variant=b X="], "")
    assert asked.variants == {"fast": {"XLA_FLAGS": "--a=1 --b=+x", "JAX_ENABLE_X64": "1"}, "b": {"X": ""}}


def test_row_counts_true_samples_in_the_median_round():
    rest = {"loss": 0.5, "layout": "", "peak_memory_mib": 1.0}
    measured = Measurement([2.0, 9.0, 1.0], 3.0, samples=100, processed=125, steps=8, **rest)
    row = tables.workload_row("a", "pytorch", measured, "alone", [3.0, 2.0, 2.5])
    assert row["seconds_per_round"] == {"median": 2.0, "min": 1.0, "max": 9.0}
    assert row["ratio"] == {"median": 2.5, "min": 2.0, "max": 3.0}
    assert (row["samples_per_second"], row["client_steps_per_second"], row["padding_efficiency"]) == (50, 4, 0.8)


def test_processed_samples_include_padding():
    from experiments.benchmarks.engine_rounds import processed_samples

    sizes, once = np.array([1, 32, 33, 96]), Training(1, 32, 0.01, 0.9)  # 1, 1, 2 and 3 steps
    assert processed_samples(sizes, once, devices=1, clients_at_once=1, batch_parts=2) == (0.5 + 1 + 1.5 + 3) * 32
    assert processed_samples(sizes, once, devices=1, clients_at_once=1) == (1 + 1 + 2 + 3) * 32
    assert processed_samples(sizes, once, devices=1, clients_at_once=2) == (2 * 1 + 2 * 3) * 32
    assert processed_samples(sizes, once, devices=2, clients_at_once=4) == (4 * 0 + 4 * 3) * 32
    twice = once._replace(epochs=2)
    assert processed_samples(sizes, twice, devices=1, clients_at_once=1) == 2 * (1 + 1 + 2 + 3) * 32


def test_systems_whose_packages_are_missing_are_left_out(capsys):
    without_torch = benchmark.available(list(SYSTEMS), lambda package: package != "torch")
    assert without_torch == ["fedjax_collapse", "fedjax_collapse-timed"]
    assert "pytorch-dataloader, pytorch-threads, pfl" in capsys.readouterr().err
    without_pfl = benchmark.available(["pytorch", "pfl"], lambda package: package != "pfl")
    assert without_pfl == ["pytorch"]
    assert "leaving out pfl; install it by pip install pfl==" in capsys.readouterr().err
    assert benchmark.available(list(SYSTEMS), lambda package: True) == list(SYSTEMS)
    assert not capsys.readouterr().err


def test_without_any_system_that_can_run_the_status_is_2(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "available", lambda systems: [])
    assert benchmark.main(["--systems=flower"]) == 2
    assert capsys.readouterr().err.startswith("error: none of the systems can run here")


@pytest.mark.parametrize(
    "wrong, named",
    [
        ("--workloads=mlp100,nope", "mlp100, cnn100"),
        ("--systems=nope", "fedjax_collapse, fedjax_collapse-timed, pytorch"),
        ("--growth=pfl", "mlp100, cnn100"),
        ("--json=/no/such/folder/x.json", "/no/such/folder/x.json"),
        ("--figure=/no/such/folder/x.svg", "/no/such/folder/x.svg"),
        ("--figure=x.txt", ".svg, .png, .pdf"),
        (f"--profile={__file__}/x", __file__),
        ("--rounds=4", "5"),
        ("--repetitions=2", ">= 3"),
        ("--variant=nothing", "NAME VARIABLE=VALUE"),
        ("--variant=pytorch X=1", "NAME VARIABLE=VALUE"),
        ("--variant=", "NAME VARIABLE=VALUE"),
        ("--growth --turns", "--turns"),
        ("--layout=2x0", "2x1"),
        ("--scale=0", "(0, 1]"),
        ("--scale=1.5", "(0, 1]"),
        ("--scale=nan", "(0, 1]"),
        ("--scale=half", "(0, 1]"),
        ("--networks=mlp --scale=0.5", "--scale"),
        ("--methods --profile=.", "--profile"),
        ("--methods --growth", "--methods"),
        ("--methods --like=fedavg2", "fedavg20"),
        ("--like=fedavg20", "--like"),
        ("--augmentations --methods", "--methods"),
        ("--augmentations --figure=x.svg", "--augmentations"),
        ("--workload=nope", "nope"),
        ("--device=tpu", "cpu"),
        ("--device=gpu --systems=fedjax_collapse,flower", "flower runs on CPUs only"),
        ("--device=gpu --augmentations", "--augmentations"),
    ],
)
def test_wrong_argument_is_one_line_and_status_2(wrong, named, capsys):
    with pytest.raises(SystemExit) as error:
        benchmark.main(re.split(" (?=--)", wrong))
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert named in printed and printed.count("\n") == 1


def test_a_gpu_has_one_device_and_the_librarys_clients_at_once(monkeypatch, capsys):
    monkeypatch.setattr(arguments, "gpus", lambda: ["a GPU"])
    assert arguments.parse(["--methods", "--device=gpu"], "").device == "gpu"
    model = WORKLOADS["mlp100"].model()
    assert engine_rounds.default_layout(model, "gpu", cores=16, clients_at_once=2) == (1, 100)
    assert engine_rounds.default_layout(model, "cpu", cores=16, clients_at_once=2) == (16, 2)
    monkeypatch.setattr(arguments, "gpus", list)
    with pytest.raises(SystemExit):
        arguments.parse(["--methods", "--device=gpu"], "")
    assert "nvidia-smi finds no GPU" in capsys.readouterr().err


def test_data_that_do_not_fit_into_memory_are_one_line_and_status_2(monkeypatch, capsys):
    needed = 50_000 * 32 * 32 * 3 * 13
    monkeypatch.setattr(arguments, "available_memory", lambda: needed - 1)
    with pytest.raises(SystemExit) as error:
        arguments.parse(["--workloads=pfl"], "")
    printed = capsys.readouterr().err
    assert error.value.code == 2 and "pfl" in printed and "--scale" in printed and printed.count("\n") == 1
    assert arguments.parse(["--workloads=pfl", "--scale=0.5"], "").scale == 0.5
    monkeypatch.setattr(arguments, "available_memory", lambda: needed)
    assert arguments.parse(["--workloads=pfl"], "").workloads == ["pfl"]
    assert environment.available_memory() is None or environment.available_memory() > 2**20


def test_failed_worker_is_shown_and_status_1(monkeypatch, capsys, tmp_path):
    (tmp_path / "flax.py").write_text("raise RuntimeError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "report.json"
    assert benchmark.main(["--workloads=mlp100", f"--json={path}"]) == 1
    assert "RuntimeError: broken" in capsys.readouterr().err
    assert not path.exists()


def test_messages_of_a_worker_are_counted(monkeypatch):
    counted = []
    monkeypatch.setattr(benchmark, "wait", lambda what: contextlib.nullcontext(lambda **said: counted.append(said)))
    monkeypatch.setattr(benchmark, "_command", lambda name: [sys.executable, "-c", "print('{\"total\": 3}')"])
    benchmark._worker("timing the methods", "overheads")
    assert counted == [{"total": 3}]


def test_ctrl_c_is_a_line(monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "_worker", interrupted)
    assert benchmark.main(["--workloads=mlp100", "--systems=fedjax_collapse"]) == 130
    assert capsys.readouterr() == ("", "stopped; no measurement was saved\n")
