"""A study that is started again with more rounds."""

import json

import numpy as np
import pytest
import small_studies
from conftest import assert_same_bits, cases
from small_studies import error_of, rows_of, tree, write_config

from experiments.configs import quickstart
from experiments.study.more_rounds import is_done
from experiments.study.resolving import resolve

pytestmark = pytest.mark.slow

ARMS = "config.arms = dict(fedavg=dict(), scaffold=dict(methods=dict(scaffold=dict())))"
PRIVACY = "config.privacy = dict(delta=1e-5, population=100)"
EQUAL = ("metrics.jsonl", "summary.json", "run.json")  # files of a run that do not depend on the machine
ARRAYS = ("final.npz", "clients.npz", "spectra.npz", "partition.npz")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a small study with so many rounds, whose config has these lines, in a folder; the exit status."""
    monkeypatch.chdir(tmp_path)

    def start(study, rounds, *lines, arguments=()):
        given = f"--workdir={study}", f"--config.rounds={rounds}", *arguments
        return small_studies.start(write_config(tmp_path, *lines), *given)

    return start


def assert_same_runs(first, second):
    """The runs of two studies have the same rows, arrays and variables, and the studies the same summary."""
    runs = sorted(path.parent.relative_to(first) for path in first.glob("*/seed*/run.json"))
    assert runs == sorted(path.parent.relative_to(second) for path in second.glob("*/seed*/run.json"))
    for run in runs:
        for name in EQUAL:
            assert (first / run / name).read_text() == (second / run / name).read_text()
        for name in ARRAYS:
            assert_same_bits(*(dict(np.load(study / run / name)) for study in (first, second)))
    assert (first / "summary.json").read_text() == (second / "summary.json").read_text()


@cases("separate", "together")
def test_it_equals_one_that_had_them_from_its_start(runs, start, tmp_path, capsys):
    lines = ARMS, f"config.seeds, config.checkpoint_every, config.engine.runs = (0, 1), 3, {runs!r}"
    assert start("longer", 2, *lines) == 0
    capsys.readouterr()
    assert start("longer", 5, *lines, arguments=["--arm=fedavg"]) == 0
    output = capsys.readouterr().out
    assert "2 runs: 2 unfinished (fedavg seed 0 after round 2, fedavg seed 1 after round 2)" in output
    assert [path.parts[-3] for path in sorted(tmp_path.glob("longer/*/*/summary.json"))] == ["fedavg"] * 2
    assert "(round 2 of 5)" in output  # of scaffold, whose two rounds are no result of a study of five
    assert start("longer", 5, *lines) == 0
    assert start("whole", 5, *lines) == 0
    assert_same_runs(tmp_path / "longer", tmp_path / "whole")
    assert json.loads((tmp_path / "longer" / "config.json").read_text())["rounds"] == 5
    before = tree(tmp_path / "longer")
    assert start("longer", 5, *lines) == 0  # finished
    assert tree(tmp_path / "longer") == before


def test_rounds_of_a_setting(start, tmp_path):
    lines = ["config.settings = dict(short=dict(rounds=1), other=dict())"]
    assert start("study", 2, *lines) == 0
    assert start("study", 3, *lines) == 0
    assert [len(rows_of(tmp_path / f"study/{name}/only/seed0")) for name in ("short", "other")] == [1, 3]
    assert start("study", 3, "config.settings = dict(short=dict(rounds=2), other=dict())") == 0
    assert len(rows_of(tmp_path / "study/short/only/seed0")) == 2


@cases(
    (["config.training.schedule = 'cosine'"], "training.schedule depends on the number of rounds, which was 2"),
    (["config.evaluate_every = 3"], "round 2 was evaluated as its last, out of the turn of evaluate_every=3"),
    (["config.measure_every, config.measurements = 3, dict(sphere='sphere')"], "round 2 was measured as its"),
    (["config.methods, config.server.weighting = dict(dp_fedavg={}), 'expected'", PRIVACY], "its epsilon is acc"),
)
def test_what_would_differ_is_one_line_and_nothing_is_touched(lines, message, start, tmp_path, capsys):
    assert start("study", 2, *lines) == 0
    before = tree(tmp_path / "study")
    capsys.readouterr()
    for arguments in ([], ["--workers=1"]):
        assert start("study", 4, *lines, arguments=arguments) == 2
        error_of(capsys, f"arm only: {message}", "choose another --workdir")
    assert tree(tmp_path / "study") == before


def test_what_does_not_depend_on_the_number_of_rounds_continues(start, tmp_path):
    """Rounds of its own, and evaluations and measurements whose turn the last round was."""
    lines = ["config.training.schedule, config.save_local = dict(name='cosine', rounds=9), 'last'"]
    lines += ["config.evaluate_every, config.measure_every, config.measurements = 2, 2, dict(sphere='sphere')"]
    lines += ["config.watch = 'all'"]
    assert start("longer", 2, *lines) == 0 and start("longer", 5, *lines) == 0
    assert start("whole", 5, *lines) == 0
    assert_same_runs(tmp_path / "longer", tmp_path / "whole")
    kept = [sorted(path.name for path in tmp_path.glob(f"{study}/*/*/local/*")) for study in ("longer", "whole")]
    assert kept[0] == kept[1] == ["000005.npz"]


def test_a_run_that_reached_its_accuracy_is_done(tmp_path):
    config = quickstart.get_config("smoke")
    config.stop_at_accuracy = 0.5
    run = resolve(config, tmp_path, "fedavg").runs[0]
    run.folder.mkdir(parents=True)
    assert not is_done(run)
    (run.folder / "summary.json").write_text("{}")
    for row, done in (({"accuracy": 0.6}, True), ({"accuracy": None}, False), ({"accuracy": 0.4}, False)):
        (run.folder / "metrics.jsonl").write_text(json.dumps({"round": 1} | row) + "\n")
        assert is_done(run) is done
