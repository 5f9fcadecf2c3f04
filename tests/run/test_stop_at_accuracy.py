"""A run that ends when it has reached an accuracy: whole, deterministic, also after a stop."""

import functools
import json

import jax
import numpy as np
import pytest
import small_studies
from conftest import assert_same_bits, check
from small_studies import write_config

from fedjax_collapse import FedAvg, LocalTraining, UserError, engine, simulate
from fedjax_collapse.results import load, page
from fedjax_collapse.run.resumption import rounds_kept
from fedjax_collapse.run.simulation import Hardware, Run, Schedule, simulate_runs

pytestmark = pytest.mark.slow

ALGORITHM = FedAvg(LocalTraining(epochs=1, batch_size=8, learning_rate=0.05))
ROUNDS = 6


def run(federation, model, **options):
    return simulate(federation, model, ALGORITHM, rounds=ROUNDS, key=jax.random.key(0), **options)


def test_stop_at_accuracy_ends_there_with_the_bits_of_the_whole_run(federation, model, tmp_path):
    """At a round before the last, whose accuracy no earlier one has."""
    whole = run(federation, model)
    accuracies = [row["accuracy"] for row in whole.metrics]
    best = next(i for i in range(1, ROUNDS - 1) if accuracies[i] > max(accuracies[:i]))
    round, accuracy = best + 1, accuracies[best]
    result = run(federation, model, stop_at_accuracy=accuracy, folder=tmp_path / "run")
    assert result.rounds_done == round and len(result.metrics) == round
    assert rounds_kept(tmp_path / "run") == (round,)
    assert_same_bits(result.metrics, whole.metrics[:round])
    assert (tmp_path / "run" / "final.npz").exists() and (tmp_path / "run" / "clients.npz").exists()
    again = run(federation, model, stop_at_accuracy=accuracy, folder=tmp_path / "run")  # trains nothing
    assert_same_bits(again.variables, result.variables)
    assert again.rounds_done == round
    options = dict(stop_at_accuracy=accuracy, folder=tmp_path / "stopped")  # before it, which changes nothing
    assert run(federation, model, **options, should_stop=lambda: True).rounds_done == 1
    assert not (tmp_path / "stopped" / "final.npz").exists()
    assert run(federation, model, **options).rounds_done == round
    first, second = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("run", "stopped"))
    assert first == second


def test_wrong_stop_at_accuracy_is_named(federation, model):
    for value in (-0.1, 1.1, np.nan, 90):
        check(r"stop_at_accuracy .* is outside \[0, 1\]", run, federation, model, stop_at_accuracy=value)
    runs = [Run(federation, ALGORITHM, jax.random.key(seed)) for seed in range(2)]
    hardware = Hardware(engine.Chunked(1), engine.Vectorized())
    with pytest.raises(UserError, match=r"end at different rounds: choose engine\.runs=separate"):
        simulate_runs(runs, model, Schedule(2, stop_at_accuracy=0.5), hardware)


def test_a_study_with_a_target(tmp_path, capsys):
    changes = (
        "config.partition.alpha, config.training.learning_rate = 10.0, 0.1",
        "config.rounds, config.seeds, config.stop_at_accuracy = 4, (0, 1), 0.11",
        "config.arms = dict(fast=dict())",
    )
    start = functools.partial(small_studies.start, write_config(tmp_path, *changes), f"--workdir={tmp_path / 'study'}")
    assert start("--config.engine.runs=together") == 2
    assert "choose engine.runs=separate" in capsys.readouterr().err and not (tmp_path / "study").exists()
    assert start() == 0
    assert "fast seed 0: starts" in capsys.readouterr().out  # by itself
    reached = [json.loads((tmp_path / f"study/fast/seed{s}/summary.json").read_text()) for s in (0, 1)]
    assert all(1 <= summary["rounds_to_target"] < 4 for summary in reached)
    assert not any("unfinished" in note for note in page.missing_results(load(tmp_path / "study")))
