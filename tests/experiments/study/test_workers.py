"""Several processes that divide the runs of a study: each is one process's, and all of them end as alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_studies
from small_studies import error_of, write_config
from unrendered import LAUNCHER, ROOT

from experiments import launch
from experiments.study.processes import workers
from experiments.study.processes.lock import locked, only_process_in

pytestmark = pytest.mark.slow

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
    line = "bad seed 0: its process was killed, perhaps because memory was exhausted"
    assert done.returncode == 1 and done.stderr == f"error: {line}; log: {log}\n"
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


def test_killed_workers_are_replaced_and_each_line_of_workers_is_printed_once(monkeypatch, tmp_path):
    launcher = tmp_path / "worker.py"
    launcher.write_text(
        "import os, sys\nprint('a warning', file=sys.stderr)\nprint(sys.argv[1:], file=sys.stderr)\n"
        f"started = open({str(tmp_path / 'started')!r}, 'a')\nstarted.write('x')\nstarted.close()\n"
        "os.abort() if '--killed' in sys.argv else sys.exit(int(sys.argv[1]))"
    )
    monkeypatch.setattr(workers, "_LAUNCHER", str(launcher))
    for status, expected in (0, 0), (1, 0), (2, 2), (75, 75):
        (tmp_path / "started").unlink(missing_ok=True)
        found = workers.train_in_workers([str(status)], 2, lambda: False, num_runs=3)
        assert found == (expected, ["a warning", f"['{status}']"])
    (tmp_path / "started").unlink()
    workers.train_in_workers(["--killed"], 2, lambda: False, num_runs=3)
    assert (tmp_path / "started").read_text() == "x" * 5  # one for each place, and one for each run


def test_the_parent_does_not_start_jax(command):
    """Though it writes the report."""
    code = "import sys; from experiments import launch; status = launch.main(sys.argv[1:]);"
    code += "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized(); sys.exit(status)"
    arguments = [command[-2], "--workers=1", "--workdir=study", "--arm=first"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and "report: " in done.stdout, done.stderr


def test_a_folder_is_locked_by_one_process_and_removed_if_nothing_was_written(tmp_path):
    run = tmp_path / "run"
    with locked(run) as first, locked(run) as second:
        assert first and not second
    assert not run.exists()
    run.mkdir()
    (run / "metrics.jsonl").touch()
    with locked(run) as again:
        assert again
    assert (run / "metrics.jsonl").exists()


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


def test_wrong_input_is_one_line_and_status_2(command, capsys):
    done = run(command, "--workers=2", "--workdir=study", "--config.training.batch_size=0")
    assert done.returncode == 2 and "batch_size 0" in done.stderr and done.stderr.count("\n") == 1
    assert not Path("study").exists()
    assert launch.main(["--config=config.py", "--workers=2", "--config.engine.runs=together"]) == 2
    error_of(capsys, "train runs separately")
