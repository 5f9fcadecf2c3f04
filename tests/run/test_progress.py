"""The line that shows a run while it is trained."""

import os
import re
import sys
from pathlib import Path

import jax
import pytest
from conftest import check

from fedjax_collapse import FedAvg, LocalTraining, simulate
from fedjax_collapse.config.keys import keys
from fedjax_collapse.run.progress import show_progress
from fedjax_collapse.run.runs import Run

ROW, TIMING = {"round": 3, "accuracy": 0.4567, "effective_rank": 12.34}, {"samples_per_second": 12345.6}


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_line_for_every_evaluation_where_there_is_no_terminal(federation, network, tmp_path, capsys):
    given, seen = (federation, network, FedAvg(LocalTraining(epochs=1))), []
    options = dict(key=jax.random.key(0), folder=tmp_path / "mine", evaluate_every=2, progress=True)
    result = simulate(*given, rounds=3, listener=lambda row, timing: seen.append((row, timing)), **options)
    assert seen == list(zip(result.metrics, result.timing, strict=True))
    first, *rest = lines(capsys)
    assert first == "mine: compiling" and len(rest) == 2
    for line, (row, timing) in zip(rest, seen, strict=True):
        number, accuracy, rank, speed = re.fullmatch(
            r"mine: round (\d)/3, accuracy ([\d.]+) %, effective rank ([\d.]+), ([\d,]+) samples/s", line
        ).groups()
        assert int(number) == row["round"] and float(accuracy) == pytest.approx(100 * row["accuracy"], abs=0.05)
        assert float(rank) == pytest.approx(row["effective_rank"], abs=0.05)
        assert int(speed.replace(",", "")) == pytest.approx(timing["samples_per_second"], abs=0.5)
    simulate(*given, rounds=3, **options)
    assert lines(capsys) == ["mine: compiling", "mine: no further evaluation"]
    simulate(*given, rounds=3, **options | dict(progress=False))
    assert lines(capsys) == []
    check("simulate: progress 'yes': expected bool", simulate, *given, rounds=3, **options | dict(progress="yes"))
    assert "progress" not in keys()


def test_a_bar_on_a_terminal(network, capsys, monkeypatch):
    """A bar is drawn over the one before, and stays; what a listener prints stands above it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    with show_progress(Run(None, None, None, Path("study/[a]/seed0")), network, 10) as show:
        show(ROW, TIMING)
        print("above")
    drawn = capsys.readouterr()
    assert drawn.out == "" and "\r\x1b[2Kabove\nseed0 " in drawn.err
    assert " accuracy 45.7 %, effective rank 12.3, 12,346 samples/s" in drawn.err
    assert "compiling" in drawn.err and drawn.err.endswith("\n\x1b[?25h")
