"""Failures of the environment, as a user meets them: a line each, no traceback, nothing damaged."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import matplotlib
import pytest
from conftest import cases
from small_studies import write_config
from unrendered import LAUNCHER, ROOT

from experiments.study.progress.console import Console
from fedjax_collapse import FedAvg, LocalTraining, simulate

pytestmark = pytest.mark.slow

ONE_DEVICE = "config.engine.devices = 1"


@pytest.fixture
def command(tmp_path) -> list[str]:
    return [*LAUNCHER, write_config(tmp_path, ONE_DEVICE), f"--workdir={tmp_path / 'study'}"]


def run(command, status=0, **variables):
    """What a process that ends with this status said: nothing but one line, if it is 2."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == status and "Traceback" not in done.stderr
    assert status == 0 or (done.stderr.count("\n") == 1 and done.stdout == "")
    return done


def test_a_config_file_may_use_jax_and_a_cache_may_be_without_a_place(command, tmp_path):
    """Devices are configured before it is run, and its arrays are written down as numbers."""
    rates = "import jax.numpy as jnp; RATES = jnp.linspace(0.1, 0.3, 3)"
    phases = "config.training.update(dict(phases=(('all', RATES[0]),)))"
    write_config(tmp_path, rates, phases, "config.engine.devices = 2")
    (tmp_path / "file").write_text("no folder")
    caches = dict(XDG_CACHE_HOME=str(tmp_path / "file"), MPLCONFIGDIR=matplotlib.get_cachedir())
    done = run(command, JAX_NUM_CPU_DEVICES="2", **caches)
    assert "2 devices" in done.stdout
    assert "warning: compiled programs are not cached" in done.stderr
    assert json.loads((tmp_path / "study" / "config.json").read_text())["training"]["phases"] == [["all", 0.1]]
    assert (tmp_path / "study" / "report.html").exists()


def test_environment_variables_that_make_no_sense(command, tmp_path):
    done = run(command, 2, JAX_PLATFORMS="nothing")
    assert done.stderr.startswith("error: JAX has no devices to run on: Unable to initialize backend 'nothing'")
    assert not (tmp_path / "study").exists()


def test_a_python_without_the_packages():
    """Such as the system's, where the environment was not activated; -S leaves out all that is installed."""
    done = run([sys.executable, "-S", "-I", str(ROOT / "experiments" / "launch.py")], 2)
    assert done.stderr.startswith(f"error: {sys.executable} has no jax, flax") and ".venv/bin/activate" in done.stderr


def test_ctrl_c_during_the_imports(command):
    """They take seconds; the handler is there before JAX is imported."""
    command = [sys.executable, str(ROOT / "experiments" / "launch.py"), *command[len(LAUNCHER) :]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_handler(process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 75 and "Traceback" not in errors
    assert "stopp" in errors and errors.count("\n") == 1


def wait_for_handler(process):
    """Until the process catches SIGINT otherwise than Python does from its start: once it imports NumPy."""
    deadline = time.monotonic() + 60
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


@cases("full", "closed")
def test_an_output_that_cannot_be_written_does_not_end_the_study(kind, capsys):
    end, start = os.pipe()
    os.close(end)
    files = {"full": "/dev/full", "closed": start}
    with open(files[kind], "w") as stream, Console({("a", 0): 2}, stream) as console:
        console.note("first")
        console.note("second")
    error = capsys.readouterr().err
    assert error.startswith("warning: the output cannot be written (") and error.count("\n") == 1


@pytest.mark.long
def test_a_locale_of_ascii(command, tmp_path):
    """Its folders cannot have such names: a line says so before anything starts; where only the output is ASCII, it has
    escapes."""
    write_config(tmp_path, ONE_DEVICE, "config.arms = dict(größe=dict())")
    options = dict(LC_ALL="C", PYTHONUTF8="0")
    assert "gr\\xf6\\xdfe': no folder can have that name" in run([*command, "--workers=2"], 2, **options).stderr
    assert not list(tmp_path.glob("study/gr*"))
    shutil.rmtree(tmp_path / "study", ignore_errors=True)
    assert "gr??e seed 0" in run(command, PYTHONIOENCODING="ascii").stdout
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert ">größe</th>" in page and (tmp_path / "study" / "größe" / "seed0").is_dir()
    run([*command[:2], "--help=neural_collapse"], **options)
    report = [sys.executable, "-m", "fedjax_collapse.command", "report", str(tmp_path / "study"), "--format=md,tex,csv"]
    run(report, **options, PYTHONIOENCODING="ascii")
    assert ">größe</th>" in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "| größe |" in (tmp_path / "study" / "export" / "results.md").read_text(encoding="utf-8")


def test_a_clock_that_goes_back_changes_no_times(federation, model, monkeypatch):
    """Seconds are those of a clock that never does."""
    now = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    algorithm = FedAvg(LocalTraining(epochs=1, batch_size=8, learning_rate=0.05))
    result = simulate(federation, model, algorithm, rounds=2, key=jax.random.key(0))
    assert all(0 <= row[lap] < 1000 for row in result.timing for lap in ("compile", "train", "evaluate"))
