"""TensorBoard and Weights & Biases get the rows of every run once, and never stand in a run's way."""

import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import small_studies
from conftest import cases
from small_studies import error_of, rows_of, write_config

from experiments.study.progress import sinks

CHANGES = (
    "config.engine.runs, config.rounds, config.checkpoint_every, config.seeds = 'together', 4, 2, (0, 1)",
    "config.arms = dict(decorr=dict(methods=dict(feddecorr=dict(strength=0.1))))",
    "config.sweep = {'methods.feddecorr.strength': (0.1, 0.2)}",
)
RUNS = [f"decorr strength={strength}/seed{seed}" for strength in (0.1, 0.2) for seed in (0, 1)]


class FakeRun:
    """A run of the stub: rows by step."""

    def __init__(self, about):
        self.about, self.rows, self.ended, self.step = about, [], None, 0

    def log(self, row, step):
        self.rows.append({"step": step, **row})
        self.step = step + 1

    def finish(self, exit_code):
        self.ended = exit_code


class Wandb(types.ModuleType):
    """Weights & Biases as far as we need them: a server, and a folder for each run that is kept offline."""

    Settings = dict

    def __init__(self):
        super().__init__("wandb")
        self.fault, self.server, self.offline = None, {}, {}
        self.errors = types.SimpleNamespace(UsageError=LookupError)

    def login(self, verify):
        if self.fault:
            raise self.fault
        return verify

    def init(self, id, mode, dir, settings, config, resume, **about):
        if mode == "online" and self.server is None:
            raise TimeoutError("lost")
        assert resume == {"online": "allow", "offline": None}[mode]
        runs, place = (self.server, id) if mode == "online" else (self.offline, dir)
        return runs.setdefault(place, FakeRun({**about, "config": config}))


@pytest.fixture
def start(tmp_path, monkeypatch, interruptible):
    """Starts the study; with ``killed_in``, it ends in that round as if by a kill, with no checkpoint of it."""
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, *CHANGES)

    def start_study(*arguments, killed_in=0):
        def should_stop():
            rows = [path.read_text().count("\n") for path in Path("study").glob("*/*/metrics.jsonl")]
            for _ in range(2 if killed_in and killed_in in rows else 0):  # the first Ctrl-C asks a run to stop
                signal.raise_signal(signal.SIGINT)
            return False

        return small_studies.start(config, "--workdir=study", *arguments, should_stop=should_stop)

    return start_study


@pytest.fixture
def wandb(monkeypatch):
    """The stub in place of the package."""
    stub = Wandb()
    for name in ("wandb", "wandb.sdk"):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(sinks.WeightsAndBiases, "is_offline", False)
    return stub


@pytest.mark.slow
def test_sinks_have_every_round_of_every_run_once(start, wandb):
    """Also of runs that go together and were killed after rounds that no checkpoint has."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    with pytest.raises(KeyboardInterrupt):
        start("--log=tensorboard,wandb", killed_in=3)
    assert {(len(run.rows), run.ended) for run in wandb.server.values()} == {(3, 1)}
    assert start("--log=tensorboard,wandb") == 0
    sent = {run.about["name"]: run for run in wandb.server.values()}
    assert len(sent) == len(RUNS)
    for name in RUNS:
        (file,) = Path("study", name, "tensorboard").iterdir()
        events = accumulator.EventAccumulator(str(file), purge_orphaned_data=False).Reload()
        rows, found = rows_of(Path("study", name)), {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
        numbers = {key for row in rows for key, value in row.items() if key != "round" and value is not None}
        assert numbers < found.keys() and "time/train" in found and "time/round" not in found
        for key in numbers:
            expected = [(row["round"], np.float32(row[key])) for row in rows if row[key] is not None]
            assert [(event.step, np.float32(values(event.tensor_proto))) for event in found[key]] == expected
        times = [event.wall_time for event in found["accuracy"]]
        assert times == sorted(times) and len(times) == 4

        arm, seed = name.split("/seed")
        run = sent[f"{arm} seed {seed}"]
        assert (run.about["project"], run.about["group"], run.ended) == ("fedjax_collapse", "study", 0)
        strength = run.about["config"]["methods"]["feddecorr"]["strength"]
        assert (run.about["config"]["seed"], f"decorr strength={strength}") == (int(seed), arm)
        assert [row["step"] for row in run.rows] == [1, 2, 3, 4]
        assert [row["accuracy"] for row in run.rows] == [row["accuracy"] for row in rows]


def test_a_service_that_does_not_answer_stops_nothing(start, wandb, capsys):
    """Runs are kept in their folders, from their first round; it is told once, before anything is trained."""
    with pytest.raises(KeyboardInterrupt):
        start(killed_in=3)
    wandb.fault = TimeoutError("no answer\nin 30 s")
    assert start("--log=wandb") == 0
    told = "warning: Weights & Biases do not answer (no answer in 30 s); runs are kept in their folders"
    error = capsys.readouterr().err
    assert error.startswith(told) and error.count("\n") == 1
    assert {folder.resolve() for folder in wandb.offline} == {Path("study", run).resolve() for run in RUNS}
    assert all([row["step"] for row in run.rows] == [1, 2, 3, 4] for run in wandb.offline.values())


def test_a_sink_that_breaks_stops_nothing(start, wandb, capsys):
    """Once a run cannot be begun, later ones are kept in their folders."""
    wandb.server = None
    assert start("--log=wandb") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "nothing more is sent to wandb (lost)" in line]
    assert len(told) == 1 and {len(rows_of(Path("study", run))) for run in RUNS} == {4}
    assert [run.ended for run in wandb.offline.values()] == [0] * 3


@cases(
    ("tensorbord", "unknown sink of --log: 'tensorbord': did you mean 'tensorboard'? expected one of"),
    ("tensorboard", '--log=tensorboard needs a package: pip install "fedjax_collapse[tensorboard]" ('),
    ("wandb", "--log=wandb: no account is configured; wandb login, or WANDB_MODE=offline"),
)
def test_wrong_sinks_are_told_before_anything_is_trained(log, words, start, wandb, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, sinks._NEEDED["tensorboard"], None)
    wandb.fault = LookupError("no terminal")
    for arguments in ([], ["--workers=2"]):
        assert start(f"--log={log}", *arguments) == 2 and error_of(capsys, f"error: {words}")
    assert not Path("study").exists()
