"""``--resume``, and what is said where a run continues in another layout."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import small_studies
from conftest import check
from small_studies import rows_of, write_config, write_data

from experiments import launch
from experiments.configs import quickstart
from experiments.study.resolving import resolve
from experiments.study.resuming import changed_layouts, check_resume
from fedjax_collapse.results.reading import layouts_of

pytestmark = pytest.mark.slow

START = {"devices": ["TFRT_CPU_0", "TFRT_CPU_1"], "layouts": {"fedavg": "1 client at a time on each of 2 devices"}}


def test_must(tmp_path):
    config = quickstart.get_config("smoke")
    config.seeds = (0, 1)
    study, fedavg = (resolve(config, tmp_path / "study", arms) for arms in (None, "fedavg"))
    check_resume("auto", study)
    check(r"resume=must: .*study has nothing of fedavg seed 0, fedavg seed 1, feddecorr", check_resume, "must", study)
    for run in fedavg.runs:
        run.folder.mkdir(parents=True)
    check_resume("must", fedavg)
    check("has nothing of feddecorr seed 0, feddecorr seed 1 to resume from", check_resume, "must", study)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a study of one small run; the exit status."""
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, "config.arms = dict(fedavg=dict())")
    return lambda *arguments: small_studies.start(config, "--workdir=study", *arguments)


def test_never_starts_all_runs_again_and_keeps_what_there_was(start, tmp_path):
    study = tmp_path / "study"
    assert start() == 0
    (study / "fedavg" / "seed0" / "mine.txt").write_text("kept")
    first = {path.relative_to(study): path.read_bytes() for path in study.glob("fedavg/seed0/[!.]*.*")}
    for number in (1, 2):
        assert start("--resume=never") == 0
        kept = study / "replaced" / str(number)
        assert {path.relative_to(kept) for path in kept.glob("fedavg/seed0/*.*")} >= {*first} - {
            path for path in first if number == 2 and path.name == "mine.txt"
        }
    for name in ("metrics.jsonl", "clients.npz", "summary.json"):  # the same run, trained again
        path = Path("fedavg", "seed0", name)
        assert (study / path).read_bytes() == (study / "replaced" / "1" / path).read_bytes() == first[path]
    assert (study / "replaced" / "1" / "fedavg" / "seed0" / "mine.txt").read_text() == "kept"
    assert json.loads((study / "summary.json").read_text())["fedavg"]["accuracy"]["n"] == 1


def test_another_layout_is_said_in_the_run_and_in_the_report(start, tmp_path, monkeypatch, capsys):
    metrics = tmp_path / "study" / "fedavg" / "seed0" / "metrics.jsonl"
    monkeypatch.setattr(launch, "stop_on_signal", lambda: metrics.exists)
    assert start("--resume=never") == launch.STOPPED
    path = tmp_path / "study" / "provenance.json"
    (first,) = json.loads(path.read_text())["starts"]
    first["layouts"]["fedavg"] = "3 clients at a time on each of 4 devices"
    path.write_text(json.dumps({"starts": [first]}))
    monkeypatch.setattr(launch, "stop_on_signal", lambda: lambda: False)
    capsys.readouterr()
    assert start("--resume=must") == 0
    said = "fedavg: resumed with .*, started with 3 clients at a time on each of 4 devices .*: rounding may differ"
    assert any(re.match(said, line) for line in capsys.readouterr().out.splitlines())
    starts = json.loads(path.read_text())["starts"]
    assert len(starts) == 2 and starts[0] == first and starts[1]["layouts"] != first["layouts"]
    page = (tmp_path / "study" / "report.html").read_text()
    assert "starts have trained it with 3 clients at a time on each of 4 devices" in page
    assert start() == 0  # finished: nothing continues
    assert "rounding may differ" not in capsys.readouterr().out


def test_layouts_and_devices_by_arm(tmp_path):
    gpu = START | {"devices": ["cuda:0"], "layouts": {"fedavg": "5 clients at a time", "new": "x"}}
    gpu |= {"convolutions": {"new": {"xla": 2, "patches": 1}, "fedavg": {}}}
    assert layouts_of([START, {}, START, gpu]) == {
        "fedavg": ["1 client at a time on each of 2 devices (TFRT_CPU)", "5 clients at a time (cuda)"],
        "new": ["x (cuda; convolutions: 1 patches, 2 xla)"],
    }
    (tmp_path / "provenance.json").write_text(json.dumps({"starts": [START, gpu]}))
    study = resolve(quickstart.get_config(), tmp_path, ["fedavg"], [0])
    assert changed_layouts(study) == []  # nothing was saved that could continue
    (tmp_path / "fedavg" / "seed0" / "checkpoints" / "3").mkdir(parents=True)
    assert len(changed_layouts(study)) == 1


OWN = """
import of_resuming_helper

def measure(view):
    return of_resuming_helper.VALUE
"""


@pytest.fixture
def start_own(tmp_path, monkeypatch, capsys):
    """Starts a study of two arms on data and with a measurement of the user's, as a new process; status and errors."""
    arms = "config.arms = dict(plain={}, own=dict(measurements=dict(x='of_resuming:measure')))"
    config = write_config(tmp_path, "config.seeds, config.data = (0, 1), dict(source='npz:data.npz')", arms)
    for name, text in (("of_resuming.py", OWN), ("of_resuming_helper.py", "VALUE = 1.0\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    write_data()
    monkeypatch.setattr("sys.path", [*sys.path])

    def start(*arguments):
        importlib.invalidate_caches()
        for name in ("of_resuming", "of_resuming_helper"):
            sys.modules.pop(name, None)
        return small_studies.start(config, "--workdir=study", *arguments), capsys.readouterr().err

    return start


def states(study):
    """Content and time of the last change of every file of its runs."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in study.glob("*/*/**/*") if path.is_file()}


def test_other_data_or_code_is_refused_in_one_line_and_nothing_is_touched(start_own, tmp_path):
    """Also for a seed or an arm that is new: one table would be of two data sets, or of two versions of a method."""
    study = tmp_path / "study"
    assert start_own("--seed=0") == (0, "")
    before = states(study)
    assert start_own("--seed=0") == (0, "")  # finished runs are left as they are
    assert states(study) == before

    write_data(seed=1)
    for choice in ("--seed=0", "--seed=1", "--seed=1 --arm=plain"):
        status, line = start_own(*choice.split())
        assert status == 2 and re.fullmatch(r"error: .*/seed0 holds another run: data is .*\n", line)
    write_data()

    helper = tmp_path / "of_resuming_helper.py"
    helper.write_text("VALUE = 500.0  # stronger\n")  # of another size: the cache of compiled modules goes by it
    for choice in ("--seed=0", "--seed=1", "--arm=own"):
        status, line = start_own(choice)
        assert status == 2 and "own/seed0 holds another run: the source of of_resuming_helper has changed" in line
        assert "start again with --resume=never" in line and line.count("\n") == 1
    assert states(study) == before
    assert start_own("--arm=plain") == (0, "")  # nothing of it depends on that code
    assert {path: state for path, state in states(study).items() if path in before} == before

    assert start_own("--resume=never", "--arm=own", "--seed=0") == (0, "")
    assert [row["measured/x"] for row in rows_of(study / "own" / "seed0")] == [500.0, 500.0]
    kept = study / "replaced" / "1" / "own" / "seed0" / "metrics.jsonl"
    assert kept.read_bytes() == before[study / "own" / "seed0" / "metrics.jsonl"][0]
