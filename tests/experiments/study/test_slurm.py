"""Runs as jobs of submitit, on this machine instead of a cluster."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import small_studies
import submitit
from conftest import check
from small_studies import error_of, write_config

from experiments import launch
from experiments.study import failures
from experiments.study.processes import slurm

pytestmark = pytest.mark.slow

CHANGES = (
    "config.engine.devices, config.evaluate_every = 1, 2",
    "config.arms = dict(good={}, bad=dict(measurements=dict(x='raising:measure')))",
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Without submitit's handlers of logs, at whose setting those that hold pytest's streams would be closed."""
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    config = write_config(tmp_path, *CHANGES)
    Path("raising.py").write_text("def measure(view):\n    raise KeyError('absent')\n")
    return lambda *arguments: small_studies.start(config, "--workdir=study", *arguments)


@pytest.mark.long
def test_a_job_for_each_run(start, capsys):
    """Each leaves its run; one that fails does not end the other, and the study has table and report."""
    assert start("--slurm=local,timeout_min=9") == 1
    printed = capsys.readouterr()
    assert "the last to end writes the report" in printed.out and "report: " in printed.out
    assert printed.err.startswith("error: bad seed 0: KeyError: 'absent'; log: ") and printed.err.count("\n") == 1
    summary = json.loads(Path("study/summary.json").read_text())
    assert [summary[arm]["accuracy"]["n"] for arm in ("good", "bad")] == [1, 0]
    assert Path("study.jobs").is_dir()


def test_a_job_whose_time_is_over_is_submitted_again_to_resume(tmp_path):
    """Also if it is killed before its run has stopped with a checkpoint."""
    failures.expect_kill(tmp_path / "failed", "b seed 0")
    failures.write_failure(tmp_path / "failed", "b seed 0: KeyError")
    failures.expect_kill(tmp_path, "a seed 0")
    assert failures.read_failure(tmp_path).startswith("a seed 0: its process was killed")
    again = slurm.Job().checkpoint(["--arm=a"])
    assert failures.read_failure(tmp_path) is None
    assert failures.read_failure(tmp_path / "failed") == "b seed 0: KeyError"  # which is not tried again
    assert isinstance(again, submitit.helpers.DelayedSubmission)
    assert isinstance(again.function, slurm.Job) and again.args == (["--arm=a"],)


def test_a_run_stops_with_a_checkpoint_before_submitit_ends_the_job(monkeypatch):
    """Its handler exits from within training, where that was taken for a failure of the run."""
    asked = []

    def main(arguments, should_stop):
        asked.append(should_stop())
        os.kill(os.getpid(), signal.SIGUSR2)
        asked.append(should_stop())
        return launch.STOPPED

    monkeypatch.setattr(launch, "main", main)
    monkeypatch.setattr("experiments.study.processes.slurm.configure_devices", lambda: None)
    before = signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            slurm.Job()([])
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert asked == [False, True]


def test_what_is_wrong_is_one_line(start, capsys):
    for option, words in ("fast", "'fast', expected name=value"), ("partition=x", "--slurm=partition=x: "):
        assert start(f"--slurm={option}") == 2 and error_of(capsys, words)


def test_submitted_or_rejected_by_slurm(start, tmp_path, monkeypatch, capfd):
    """A job that waits is not asked for its state, and what ``sbatch`` has against it is said once."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, does in ("srun", ""), ("sacct", "echo asked >&2"), ("sbatch", "echo Submitted batch job 7"):
        _write_script(tmp_path / name, does)
    assert start("--slurm=partition=x") == 0
    printed = capfd.readouterr()
    assert "jobs 7_0, 7_1, logs in " in printed.out and printed.err == ""
    assert start("--slurm=partition=x", "--workers=1") == 0
    assert "jobs 7, logs in " in capfd.readouterr().out
    _write_script(tmp_path / "sbatch", "echo no such partition >&2; exit 1")
    assert start("--slurm=partition=x") == 2
    assert capfd.readouterr().err == "error: --slurm=partition=x: no such partition\n"


def _write_script(path, commands):
    path.write_text(f"#!/bin/sh\n{commands}\n")
    path.chmod(0o755)


def test_without_submitit(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    check(r'pip install "fedjax_collapse\[slurm\]"', slurm.submit, [], 1, "local", Path("study.jobs"))
