"""Several processes that divide the runs of a study: each is one process's, and all of them end as alone."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import small_studies
from small_studies import write_config
from unrendered import LAUNCHER

from experiments import launch
from experiments.startup import STOPPED_EARLY, STOPPING
from experiments.study.processes import workers
from experiments.study.processes.lock import holder, only_process_in, taken
from experiments.study.progress.console import Console
from experiments.study.resolving import RunSpec, StudySpec
from fedjax_collapse import UserError
from fedjax_collapse.config.resolving import Cell

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CHANGES = (
    "config.engine.devices, config.evaluate_every, config.rounds, config.checkpoint_every = 1, 2, 4, 2",
    "config.arms = dict(first={}, bad=dict(measurements=dict(x='deadly:measure')), last={})",
)
DEADLY = """
import os, pathlib, signal, time

def measure(view):
    if pathlib.Path("slow").exists():
        pathlib.Path("started").touch()
        time.sleep(2)
    elif not pathlib.Path("repaired").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0
"""


@pytest.fixture
def command(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    config = write_config(Path(), *CHANGES)
    Path("deadly.py").write_text(DEADLY)
    cache = f"--compilation_cache={ROOT / '.pytest_cache' / 'jax'}"
    return [*LAUNCHER, config, cache]


def run(command, *arguments):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=500)


def metrics(study):
    return {path.parent.parent.name: path.read_bytes() for path in Path(study).glob("*/*/metrics.jsonl")}


def test_workers_end_as_one_process_does_and_outlive_a_run_that_kills_them(command):
    """It is not taken again, but by a restart; the numbers are those without workers."""
    done = run(command, "--workers=2", "--workdir=study")
    log = Path("study/bad/seed0/error.log").absolute()
    line = "bad seed 0: its process was ended by SIGKILL; SIGKILL may mean that memory was exhausted"
    assert done.returncode == 1 and done.stderr == f"error: {line}; log: {log}\n"
    assert f"failed: {line}" in done.stdout and "finished, 2 of 3" in done.stdout
    assert "first seed 0  round 4/4  accuracy" in done.stdout and "report: " in done.stdout
    summary = json.loads(Path("study/summary.json").read_text())
    assert [summary[arm]["accuracy"]["n"] for arm in ("first", "bad", "last")] == [1, 0, 1]

    assert small_studies.start("--config=config.py", "--workdir=alone", "--arm=first,last") == 0
    both, alone = metrics("study"), metrics("alone")
    assert both["first"] == alone["first"] and both["last"] == alone["last"]

    Path("repaired").touch()
    assert small_studies.start("--config=config.py", "--workdir=study") == 0
    assert json.loads(Path("study/summary.json").read_text())["bad"]["accuracy"]["n"] == 1
    assert not log.exists()


def test_a_signal_to_the_parent_stops_all_after_a_checkpoint(command):
    Path("slow").touch()
    arguments = ["--workers=1", "--workdir=study", "--arm=bad"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not Path("started").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 75 and errors.startswith("stopping after") and errors.count("\n") == 1
    assert (Path("study/bad/seed0/checkpoints") / "2").exists() and not Path("study/bad/seed0/summary.json").exists()
    with only_process_in(Path("study")):  # nobody is left
        pass


def test_wrong_input_is_one_line_and_status_2(command, capsys):
    done = run(command, "--workers=2", "--workdir=study", "--config.training.batch_size=0")
    assert done.returncode == 2 and "batch_size 0" in done.stderr and done.stderr.count("\n") == 1
    assert not Path("study").exists()
    for argument, words in ("--workers=-1", "-1 is negative, expected >= 0"), ("--workers=2", "train runs apart"):
        assert launch.main(["--config=config.py", argument, "--config.engine.runs=together"]) == 2
        assert words in capsys.readouterr().err


def test_what_workers_say_is_shown_once_and_not_that_they_were_told_to_stop(capsys):
    of_workers = workers._Workers(workers.Work([], StudySpec({}, Path("study"), (), ())), [])
    wrong = "error: training.batch_size 0 is too small"
    of_workers._read(f"{line}\n" for line in (STOPPING, "a warning", wrong))
    of_workers._read(f"{line}\n" for line in ("a warning", STOPPED_EARLY))  # it was still importing
    assert capsys.readouterr().err == "a warning\n" and of_workers.errors == [wrong]


def test_each_run_is_one_processs_and_tried_once_by_a_share(tmp_path):
    run = tmp_path / "run"
    with taken(run, "mine") as first, taken(run, "yours") as second:
        assert first and not second
    assert holder(run, "mine") == os.getpid() and holder(run, "yours") is None
    with taken(run, "mine") as again:
        assert not again
    with taken(run, "yours") as other:
        assert other


def test_a_shared_folder_keeps_out_those_who_do_not_share(tmp_path):
    with only_process_in(tmp_path, shared=True) as first_is_last:
        with only_process_in(tmp_path, shared=True) as second_is_last:
            assert not second_is_last()
        with pytest.raises(UserError, match="another process"), only_process_in(tmp_path):
            pass
        assert first_is_last()


def test_cores_and_gpus_are_divided(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert [place.cores for place in workers.places(2)] == [[0, 1], [2, 3, 4]]
    assert [place.variables for place in workers.places(2)] == [{"JAX_NUM_CPU_DEVICES": n} for n in "23"]
    assert [place.cores for place in workers.places(7)] == [[0], [0], [1], [2], [2], [3], [4]]
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert [place.variables for place in workers.places(2)] == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "46"]
    shared = workers.places(3)
    assert [place.variables["CUDA_VISIBLE_DEVICES"] for place in shared] == ["4", "6", "4"]
    assert {place.variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] for place in shared} == {"0.375"}


def test_the_time_left_is_of_what_processes_do_at_the_same_time(tmp_path, capsys):
    """By the seconds in the files of the runs; one run is not divided."""
    cell = Cell("", "only", {"rounds": 10, "evaluate_every": 2, "stop_at_accuracy": 0.0})
    study = StudySpec({}, tmp_path, (cell,), tuple(RunSpec(cell, seed, tmp_path / f"seed{seed}") for seed in range(3)))
    progress = workers._Progress(workers.Work([], study), 2, Console())

    def evaluate(seed, round, **seconds):
        study.runs[seed].folder.mkdir(exist_ok=True)
        for name, row in ("metrics", {"accuracy": 0.5}), ("timing", seconds):
            (study.runs[seed].folder / f"{name}.jsonl").write_text(json.dumps({"round": round} | row) + "\n")
        return progress.show()

    assert evaluate(0, 2, compile=30.0, train=8.0, evaluate=2.0) == 2
    assert evaluate(0, 8, compile=0.0, train=7.0, evaluate=1.0) == 6  # 4 s each, and the first two are forgotten
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("left 0:40 (study 1:40)")  # 5 s for each of 8 + 10 + 10 rounds, twice 30 s, in two processes
    assert last.endswith("left 0:08 (study 1:14)")
    (study.runs[1].folder).mkdir()
    for run in study.runs[:2]:
        (run.folder / "metrics.jsonl").write_text('{"round": 10}\n')
        (run.folder / "summary.json").write_text("{}")
    assert evaluate(2, 2, compile=None, train=None, evaluate=None) == 2 + 10 + 2
    assert capsys.readouterr().out.splitlines()[-1].endswith("left 0:32 (study 0:32)")
