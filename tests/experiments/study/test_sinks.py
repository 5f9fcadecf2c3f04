"""TensorBoard and Weights & Biases get the rows of every run once, and never stand in a run's way."""

import importlib
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import small_studies
from small_studies import write_config

from experiments.study.progress import sinks

CHANGES = (
    "config.engine.runs, config.rounds, config.checkpoint_every, config.seeds = 'together', 4, 2, (0, 1)",
    "config.arms = dict(decorr=dict(methods=dict(feddecorr=dict(strength=0.1))))",
    "config.sweep = {'methods.feddecorr.strength': (0.1, 0.2)}",
)
RUNS = [f"decorr strength={strength}/seed{seed}" for strength in (0.1, 0.2) for seed in (0, 1)]
WANDB = '''
"""Weights & Biases as far as we need them: a server is a folder, with a file for every run."""

import json
import pathlib

from wandb import errors

Settings = dict


def login(verify):
    if pathlib.Path("stranger").exists():
        raise errors.UsageError("no terminal")
    if pathlib.Path("unreachable").exists():
        raise TimeoutError("no answer\\nin 30 seconds")
    return verify


class Run:
    def __init__(self, file, about):
        self._file = file
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(about) + "\\n")
        *_, last = file.read_text().splitlines()
        self.step = json.loads(last).get("step", -1) + 1

    def log(self, row, step):
        with self._file.open("a") as file:
            file.write(json.dumps({"step": step, **row}) + "\\n")

    def finish(self, exit_code):
        pathlib.Path(f"{self._file}.ended").write_text(str(exit_code))


def init(id, mode, dir, settings, config, resume, **about):
    if mode == "online" and pathlib.Path("lost").exists():
        raise TimeoutError("lost")
    assert resume == {"online": "allow", "offline": None}[mode]
    folder = pathlib.Path("server") if mode == "online" else pathlib.Path(dir, "wandb")
    return Run(folder / id, {**about, "config": config})
'''


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
def wandb(tmp_path, monkeypatch):
    """The stub in place of the package."""
    for module in [name for name in sys.modules if name.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text(WANDB)
    (tmp_path / "wandb" / "sdk.py").touch()
    (tmp_path / "wandb" / "errors.py").write_text("class UsageError(Exception): ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(sinks.WeightsAndBiases, "is_offline", False)
    importlib.invalidate_caches()
    yield
    for module in ("wandb", "wandb.sdk", "wandb.errors"):
        sys.modules.pop(module, None)


def rows_of(run):
    return [json.loads(line) for line in Path("study", run, "metrics.jsonl").read_text().splitlines()]


def sent(folder):
    """What runs are and the rows that they have, by name and by whether they ended well."""
    found = {}
    for file in (file for file in Path(folder).iterdir() if file.suffix != ".ended"):
        about, *rows = map(json.loads, file.read_text().splitlines())
        found[about["name"]] = about, rows, Path(f"{file}.ended").read_text()
    return found


@pytest.mark.slow
def test_tensorboard_has_every_round_of_every_run_once(start):
    """Also of runs that go together and were killed after rounds that no checkpoint has, and asked for in between."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    with pytest.raises(KeyboardInterrupt):
        start("--log=tensorboard", killed_in=3)
    assert len(rows_of(RUNS[0])) == 3
    assert start("--log=tensorboard") == 0
    for run in RUNS:
        (file,) = Path("study", run, "tensorboard").iterdir()
        events = accumulator.EventAccumulator(str(file), purge_orphaned_data=False).Reload()
        rows, found = rows_of(run), {tag: events.Tensors(tag) for tag in events.Tags()["tensors"]}
        numbers = {name for row in rows for name, value in row.items() if name != "round" and value is not None}
        assert numbers < found.keys() and "time/train" in found and "time/round" not in found
        for name in numbers:
            expected = [(row["round"], np.float32(row[name])) for row in rows if row[name] is not None]
            assert [(event.step, np.float32(values(event.tensor_proto))) for event in found[name]] == expected
        times = [event.wall_time for event in found["accuracy"]]
        assert times == sorted(times) and len(times) == 4


@pytest.mark.slow
def test_weights_and_biases_have_every_round_of_every_run_once(start, wandb):
    with pytest.raises(KeyboardInterrupt):
        start("--log=wandb", killed_in=3)
    assert {len(rows) for _, rows, _ in sent("server").values()} == {3}
    assert {ended for _, _, ended in sent("server").values()} == {"1"}
    assert start("--log=wandb") == 0
    assert len(sent("server")) == len(RUNS)
    for run in RUNS:
        arm, seed = run.split("/seed")
        about, rows, ended = sent("server")[f"{arm} seed {seed}"]
        assert (about["project"], about["group"], ended) == ("fedjax_collapse", "study", "0")
        strength = about["config"]["methods"]["feddecorr"]["strength"]
        assert (about["config"]["seed"], f"decorr strength={strength}") == (int(seed), arm)
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in rows_of(run)]


def test_a_service_that_does_not_answer_stops_nothing(start, wandb, capsys):
    """Runs are kept in their folders, from their first round; it is told once, before anything is trained."""
    with pytest.raises(KeyboardInterrupt):
        start(killed_in=3)
    Path("unreachable").touch()
    assert start("--log=wandb") == 0
    told = "warning: Weights & Biases do not answer (no answer in 30 seconds); runs are kept in their folders"
    error = capsys.readouterr().err
    assert error.startswith(told) and error.count("\n") == 1
    for run in RUNS:
        ((_, rows, _),) = sent(f"study/{run}/wandb").values()
        assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_a_sink_that_breaks_stops_nothing(start, wandb, capsys):
    """Once a run cannot be begun, later ones are kept in their folders."""
    Path("lost").touch()
    assert start("--log=wandb") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "nothing more is sent to wandb (lost)" in line]
    assert len(told) == 1 and {len(rows_of(run)) for run in RUNS} == {4}
    assert len(list(Path("study").glob("*/*/wandb/*.ended"))) == 3


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("tensorbord", "unknown sink of --log: 'tensorbord': did you mean 'tensorboard'? expected one of"),
        ("tensorboard", '--log=tensorboard needs a package: pip install "fedjax_collapse[tensorboard]" ('),
        ("wandb", "--log=wandb: no account is configured; wandb login, or WANDB_MODE=offline"),
    ],
)
def test_wrong_sinks_are_told_before_anything_is_trained(log, words, start, wandb, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, sinks._NEEDED["tensorboard"], None)
    Path("stranger").touch()
    for arguments in ([], ["--workers=2"]):
        assert start(f"--log={log}", *arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {words}") and error.count("\n") == 1
    assert not Path("study").exists()
