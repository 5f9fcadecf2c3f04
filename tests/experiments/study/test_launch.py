"""The launcher as a user meets it: a study from one command, resuming, and every wrong input in one line."""

import json
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest
import small_studies
from conftest import cases, check
from small_studies import error_of, rows_of, tree, write_config
from unrendered import ROOT

from experiments import launch
from experiments.config_files import find_config
from experiments.configs import quickstart
from experiments.study import preparing
from experiments.study import study as study_module
from experiments.study.preparing import federations_of
from experiments.study.resolving import resolve
from fedjax_collapse import UserError
from fedjax_collapse.config import build
from fedjax_collapse.config.keys import keys
from fedjax_collapse.config.resolving import resolve_arm
from fedjax_collapse.results import page
from fedjax_collapse.results.metrics import SUMMARISED
from fedjax_collapse.results.page import write_report

pytestmark = pytest.mark.slow

ARMS = "dict(fedavg=dict(), feddecorr=dict(methods=dict(feddecorr=dict(strength=0.1))))"
QUICKSTART = "--config=experiments/configs/quickstart.py:smoke"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def config_file(tmp_path):
    return write_config(tmp_path, "config.network = dict(name='small_cnn', channels=(4,))", f"config.arms = {ARMS}")


def start(*arguments, workdir, **options):
    return small_studies.start(*arguments, f"--workdir={workdir}", **options)


def times_of(folder):
    """When each file was changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_study_from_one_command(config_file, tmp_path, capsys):
    study = tmp_path / "study"
    assert start(config_file, "--config.seeds=(0,1)", workdir=study, renders=True) == 0
    output = capsys.readouterr().out
    assert "fedavg" in output and "feddecorr" in output and f"report: {study}/report.html" in output
    summary = json.loads((study / "summary.json").read_text())
    assert list(summary) == ["fedavg", "feddecorr"]
    for metrics in summary.values():
        assert metrics["accuracy"].pop("of") == "server model on the whole test set"
        assert metrics["R"].pop("of") == "client 0"
        optional = ["dead_features", "local_dead_features"]
        assert list(metrics) == [metric.name for metric in SUMMARISED] + optional
        assert all(set(entry) == {"mean", "std", "n"} for entry in metrics.values())
        counts = {name: entry["n"] for name, entry in metrics.items()}
        assert counts.pop("last10_accuracy") == 0 and set(counts.values()) == {2}  # there are fewer than ten rounds
    files = "metrics.jsonl timing.jsonl clients.npz spectra.npz partition.npz final.npz"
    files += " summary.json run.json together.json checkpoints"
    assert {path.name for path in (study / "feddecorr" / "seed1").iterdir()} == {".lock", *files.split()}
    assert json.loads((study / "config.json").read_text())["clients"] == 4
    (provenance,) = json.loads((study / "provenance.json").read_text())["starts"]
    hashes = provenance["sha256"]
    assert provenance["packages"]["jax"] and set(hashes["fedavg"]) == {"seed0", "seed1"}
    assert hashes["fedavg"]["seed0"] == hashes["feddecorr"]["seed1"]  # the quickstart fixes the partition's seed
    assert provenance["convolutions"]["fedavg"] == {"strips": 1}
    assert provenance["layouts"]["fedavg"] == "1 client at a time on each of 4 devices"
    assert "<svg" in (study / "report.html").read_text()

    before, times = tree(study), times_of(study)
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:  # finished: neither traces, nor trains, nor draws, nor starts workers
        patch.setattr(launch, "train_in_workers", lambda *arguments: pytest.fail("workers are started"))
        for module, name in ((preparing, "make_plan"), (page, "render"), (study_module, "train_group")):
            patch.setattr(module, name, lambda *arguments, **options: pytest.fail("called again"))
        for option in "--workers=0", "--workers=2":
            assert start(config_file, "--config.seeds=(0,1)", option, workdir=study) == 0
    assert tree(study) == before and times_of(study) == times
    output = capsys.readouterr().out
    assert "all 4 runs are finished" in output and f"report: {study}/report.html (up to date)" in output
    assert "effective rank" in output.lower() and "starts" not in output

    assert start(config_file, "--config.seeds=(0,1)", "--config.rounds=1", workdir=study) == 2
    error_of(capsys, "rounds is 2 there, 1 here; choose another --workdir")
    assert tree(study) == before


def test_hours_are_estimated_by_two_rounds_of_every_arm_with_which_the_study_continues(config_file, tmp_path, capsys):
    arguments = config_file, "--config.seeds=(0,1)", "--config.rounds=3", "--config.engine.runs=separate"
    assert start(*arguments, "--estimate", workdir=tmp_path / "study") == 0
    output = capsys.readouterr().out
    for line in ("Arm +Runs +Rounds left +Hours", *(rf"{row} +\d\.\d\d" for row in ("g +2 +4", "r +2 +4", "l +4 +8"))):
        assert re.search(line, output), line
    assert sorted(path.parent.name for path in (tmp_path / "study").rglob("metrics.jsonl")) == ["seed0", "seed0"]
    assert start(*arguments, workdir=tmp_path / "study") == start(*arguments, workdir=tmp_path / "whole") == 0
    for path in (tmp_path / "whole").rglob("metrics.jsonl"):
        assert (tmp_path / "study" / path.relative_to(tmp_path / "whole")).read_text() == path.read_text()


def test_options_that_the_config_does_not_have_yet():
    options = ["--config.methods.fedmr.inter=0.5", "--config.network.norm=none", "--config.data.seed=3"]
    options += ["--config.arms.fedavg.partition.min_size=5", "--config.rounds=7"]
    config = launch.parse([QUICKSTART, *options]).config
    assert (config["methods"]["fedmr"]["inter"], config["network"]["norm"], config["rounds"]) == (0.5, "none", 7)
    arm = resolve_arm(config, "fedavg")
    partition = arm["partition"]
    assert (partition["min_size"], partition["name"], arm["data"]["seed"]) == (5, "dirichlet", 3)
    check("--config is missing: expected --config=NAME or --compare=METHOD,METHOD; ", launch.parse, [])


def test_none_on_the_command_line(tmp_path):
    """In place of a value and the other way round, as by default; of what it may not be, the schema says so."""
    config = launch.parse([QUICKSTART, "-config.partition.seed=None", "--config.on_nan=None"]).config
    assert config["partition"]["seed"] is None and config["on_nan"] is None
    file = write_config(tmp_path, "config.update(on_nan=None)", "config.training.steps = None")
    config = launch.parse([file, "--config.on_nan=continue", "--config.training.steps=3"]).config
    assert config["on_nan"] == "continue" and config["training"]["steps"] == 3
    for key in (key for key in keys() if key not in ("sweep", "partition.seed", "on_nan")):
        try:
            study = resolve(launch.parse([QUICKSTART, f"--config.{key}=None"]).config, Path())
            build.algorithm(study.cells[0].values)
        except UserError as error:
            assert re.search(rf"{key.rpartition('.')[2]}\b.*: expected", str(error)) and "\n" not in str(error)


def test_values_may_be_written_as_in_a_config_file():
    options = ["--config.methods=dict(krum=dict(attackers=2), median=dict())", "--config.network.head=dict(name='etf')"]
    config = launch.parse([QUICKSTART, *options, "--config.privacy=dict(delta=1e-5)"]).config
    assert config["methods"] == {"krum": {"attackers": 2}, "median": {}}
    assert config["network"]["head"] == {"name": "etf"} and config["privacy"] == {"delta": 1e-5}
    wrong = {
        r"methods=dict.*: expected a dict\(key=value": ("dict(krum=dict(", "dict(krum=max(1, 2))", "dict([])"),
        "network=a: expected --config.network.name=a, or a dict": "a",
        "data=a: expected --config.data.source=a, or a dict": "a",
        "training=a: expected --config.training.KEY=a, or a dict": "a",
    }
    for message, texts in wrong.items():
        for text in texts:
            check(f"--config.{message}", launch.parse, [QUICKSTART, f"--config.{message.split('=')[0]}={text}"])


def test_arms_may_differ_in_their_partition():
    """Those that do not share one federation."""
    config = quickstart.get_config()
    config.arms = dict(a=dict(), b=dict(partition=dict(name="iid")), c=dict(training=dict(epochs=1)))
    made = federations_of(resolve(config, Path()).cells, (0,))
    assert made["a"] is made["c"] and np.ptp(made["b"][0].ownership.sizes) <= 1 < np.ptp(made["a"][0].ownership.sizes)


def test_a_run_that_diverges_stops_with_one_line(tmp_path, capsys):
    """Its rows are there and may be reported; a second start says the same. One that is trained with it is finished."""
    bad = "config.arms = dict(good=dict(), bad=dict(training=dict(learning_rate=1e6)))"
    config, study = write_config(tmp_path, "config.engine.runs = 'together'", bad), tmp_path / "study"
    for is_again in (False, True):
        assert start(config, workdir=study) == 1
        printed, line = capsys.readouterr(), r"error: bad seed 0: round 1, client .*; lower training.learning_rate .*\n"
        assert re.fullmatch(line, printed.err) and ("is run again" in printed.out) != is_again
    assert [file.parents[1].name for file in study.glob("*/*/summary.json")] == ["good"]
    assert rows_of(study / "bad/seed0")[0]["train/task_loss"] is None and (study / "bad/seed0/divergence.npz").exists()
    assert "<svg" in write_report(study).read_text()


WRONG = {
    "unknown key": (["--config.rouns=3"], "'rouns': did you mean 'rounds'"),
    "with one dash": (["-config.clip=0"], "unknown config key in --config.clip: 'clip': expected one of arms"),
    "a usual name": (["-config.training.lr=0.1"], "'lr': did you mean 'learning_rate'? expected one of batch_size"),
    "a usual name without its section": (["--config.lr=0.1"], "'lr': did you mean 'training.learning_rate'?"),
    "a usual name of a method's option": (["--config.methods.fedprox.mu=0.1"], "'mu': did you mean 'strength'?"),
    "a negative flag": (["--workers=-1"], "-1 is negative, expected >= 0"),
    "two configs": (["--config=pfllib"], "--config is given twice, as", "pfllib: expected one"),
    "a key of another section": (["--config.server.epochs=1"], "'epochs': did you mean 'training.epochs'?"),
    "wrong type": (["--config.rounds=many"], "rounds", "many"),
    "unknown arm": (["--arm=fedprox"], "fedprox", "fedavg, feddecorr"),
    "unknown seed": (["--seed=9"], "unknown seed '9'"),
    "unknown flag": (["--wrokdir=/tmp/x"], "unknown option 'wrokdir': did you mean 'workdir'?"),
    "a key as a flag": (["--rounds=3"], "unknown option 'rounds': did you mean '--config.rounds'?"),
    "a usual name as a flag": (["--lr=0.1"], "did you mean '--config.training.learning_rate'?"),
    "misspelt arm": (["--config.arms.fedavgg.training.epochs=2"], "did you mean 'fedavg'"),
    "stray argument": (["rounds=3"], "unexpected argument 'rounds=3'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_status_2(case, tmp_path, capsys):
    arguments, *words = WRONG[case]
    workdir = tmp_path / "study"
    assert start(QUICKSTART, *arguments, workdir=workdir) == 2
    error_of(capsys, *words)
    assert not workdir.exists()


@cases(
    ("quikstart", "quickstart"),
    ("feddecor/table1.py", "feddecorr/table1"),
    ("experiments/configs/feddecorr/tabel1.py:smoke", "feddecorr/table1"),
    ("table6", "feddecorr/table6 or fedmr/table6"),
)
def test_missing_config_file_is_told_with_the_nearest(name, nearest, tmp_path, capsys):
    assert start(f"--config={name}", workdir=tmp_path / "study") == 2
    assert len(error_of(capsys, f"did you mean {nearest}")) < 380
    assert launch.parse([f"--config={nearest.split()[0]}"])  # what it says is found


def test_own_files_with_names_of_ours(tmp_path, monkeypatch):
    """A name alone is ours, with a warning; a module of a config of ours is never next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "robust.py").write_text("class Own:\n    pass\n")
    assert find_config("--config=robust.py", "robust.py") == Path("robust.py")
    with pytest.warns(UserWarning, match="--config=robust is experiments/configs/robust.py, not your .*=robust.py"):
        assert launch.parse(["--config=robust"])
    assert PathFinder.find_spec("robust").origin == str(tmp_path / "robust.py")


@cases("feduv", "experiments/configs/feduv/")
def test_a_folder_of_configs_is_listed(name, tmp_path, capsys):
    assert start(f"--config={name}", workdir=tmp_path / "study") == 2
    error_of(capsys, "in feduv/ there are figure1, figure3, figure4, table1,")


def test_unusable_workdirs(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    before = tree(tmp_path)
    for name in ("file", "file/below", "full", "broken", "/proc/study"):
        assert start(QUICKSTART, workdir=tmp_path / name) == 2 and error_of(capsys, name, "choose another")
    assert tree(tmp_path) == before
