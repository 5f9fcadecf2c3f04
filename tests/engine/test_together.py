"""Runs trained as one program have the numbers that they have alone; studies put together what can go together."""

import json
import shutil

import jax
import numpy as np
import pytest
import small_studies
from conftest import assert_close, assert_same_bits
from test_lost_uploads import UNRELIABLE

from experiments import launch
from experiments.configs import quickstart
from experiments.study import groups, summaries
from experiments.study.preparing import federations_of
from experiments.study.resolving import resolve
from fedjax_collapse import FedAvg, FedDecorr, FedMR, LocalTraining, Scaffold, engine, simulate
from fedjax_collapse.engine import together
from fedjax_collapse.methods.classifier.fedlc import FedLC
from fedjax_collapse.run.resumption import rounds_kept
from fedjax_collapse.run.runs import initialize
from fedjax_collapse.run.simulation import Hardware, Run, Schedule, simulate_runs, structure

pytestmark = pytest.mark.slow

OPTIONS = dict(rounds=3, participation=UNRELIABLE, evaluate_every=2)
SCHEDULE = Schedule(**OPTIONS)
RUN_MAPS = {
    "chunked": engine.Chunked(2),  # with a run that only pads
    "sharded": engine.Sharded(2, engine.Chunked(1)),
}


def training(number):
    return LocalTraining(epochs=1, batch_size=8, learning_rate=0.02 * (number + 1), momentum=0.5)


def composed(number, *names):
    """All of these methods in one run, or some."""
    methods = {
        "feddecorr": FedDecorr(0.1 * (number + 1), "official"),
        "fedmr": FedMR(inter=0.1 * (number + 1)),
        "scaffold": Scaffold(),
        "fedlc": FedLC(counts="global"),  # clients report before the first round
    }
    return FedAvg(training(number), {name: methods[name] for name in names or methods})


@pytest.fixture(scope="module")
def partitions(federation):
    """Three partitions of the same data, of the same capacity."""
    rows = np.asarray(federation.owned_rows()[2])
    own = [federation.owned_rows(), [np.roll(rows, i)[: 9 + 5 * i] for i in range(5)], federation.owned_rows()[::-1]]
    return [federation.with_partition(parts, 40) for parts in own]


@pytest.mark.parametrize("run_map", RUN_MAPS)
def test_runs_that_go_together_are_the_runs_alone(float64, partitions, network, run_map, compiled):
    """Of other seeds, numbers and partitions: to 1e-9 in float64, and compiled once; each loses its own uploads."""
    group = [Run(f, composed(i), jax.random.key(i)) for i, f in enumerate(partitions)]
    assert len({structure(run) for run in group}) == 1
    results = simulate_runs(group, network, SCHEDULE, Hardware(engine.Chunked(1), RUN_MAPS[run_map]))
    assert [name for name in compiled if "_run_" in name] == ["jit(_run_rounds)"]
    for run, result in zip(group, results, strict=True):
        alone = simulate(run.federation, network, run.algorithm, key=run.key, **OPTIONS)
        assert_close(result.variables, alone.variables, 1e-9)
        assert_close(result.clients, alone.clients, 1e-9)
        assert_same_bits(result.clients["arrived"], alone.clients["arrived"])
        assert result.metrics[-1]["virtual/seconds"] == alone.metrics[-1]["virtual/seconds"]
        assert [row["round"] for row in result.metrics] == [2, 3]
        for row, expected in zip(result.metrics, alone.metrics, strict=True):
            assert_close(row, expected, 1e-6)
    losses = [result.metrics[-1]["loss"] for result in results]
    assert len(set(losses)) == 3
    assert not np.array_equal(*(result.clients["arrived"] for result in results[:2]), equal_nan=True)


def test_runs_of_another_structure_do_not_go_together(federation, partitions):
    first = Run(federation, composed(0, "feddecorr"), jax.random.key(0))
    assert structure(first) == structure(first._replace(algorithm=composed(1, "feddecorr"), key=jax.random.key(1)))
    for other in (
        first._replace(algorithm=composed(0, "fedmr")),
        first._replace(algorithm=FedAvg(training(0), {"feddecorr": FedDecorr(0.0, "official")})),  # left out
        first._replace(algorithm=FedAvg(training(0).replace(batch_size=4), first.algorithm.methods)),
        first._replace(federation=federation.with_partition(federation.owned_rows(), 50)),
    ):
        assert structure(first) != structure(other)


def test_together_is_chosen_where_devices_wait_less():
    """Two devices: clients that cannot be dealt evenly, or more runs than devices."""
    client_map = engine.Sharded(2, engine.Chunked(1))
    even, uneven = np.full(8, 32), np.array([320, 8, 8, 8])
    assert together.is_faster(client_map, [uneven] * 2, 32)
    assert together.is_faster(client_map, [uneven] * 3, 32)  # 26 steps on one device, not 3 * 11
    assert not together.is_faster(client_map, [even] * 2, 32)  # the same, so they stay apart
    assert not together.is_faster(client_map, [even] * 3, 32)
    assert not together.is_faster(client_map, [uneven], 32)
    assert not together.is_faster(engine.Chunked(1), [uneven] * 4, 32)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a study of two arms that differ in a strength, with two seeds; returns the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summaries, "write_report", lambda study: study)
    config = small_studies.write_config(
        tmp_path,
        "config.rounds, config.seeds, config.checkpoint_every = 3, (0, 1), 1",
        "config.arms = {f'strength{s}': dict(methods=dict(feddecorr=dict(strength=s / 10))) for s in (1, 2)}",
    )

    def start_study(workdir, *arguments, runs="together", should_stop=None):
        given = f"--config.engine.runs={runs}", f"--workdir={tmp_path / workdir}", *arguments
        return small_studies.start(config, *given, should_stop=should_stop)

    return start_study


def results(folder):
    return {p.parent.name + p.parent.parent.name: p.read_text() for p in folder.glob("*/*/metrics.jsonl")}


def test_a_study_trains_seeds_and_strengths_together(start, tmp_path, capsys):
    assert start("together") == 0
    printed = capsys.readouterr().out
    assert "[1-4/4] strength1 seeds 0, 1; strength2 seeds 0, 1: starts" in printed
    assert "4 runs together on" in printed and "MiB for a round in addition to" in printed
    assert len(results(tmp_path / "together")) == 4
    assert start("separate", runs="separate") == 0
    assert "[4/4] strength2 seed 1: starts" in capsys.readouterr().out
    last = {}
    for name in ("together", "separate"):
        rows = {run: text.splitlines() for run, text in results(tmp_path / name).items()}
        assert all(len(lines) == 3 for lines in rows.values())
        last[name] = {run: json.loads(lines[-1])["loss"] for run, lines in rows.items()}
    assert last["together"] == pytest.approx(last["separate"], rel=1e-3)
    assert len(set(last["together"].values())) == 4


def test_runs_that_were_saved_at_different_rounds_go_on_together(start, tmp_path, capsys):
    """A study killed between the saves of two runs: the last round that all have kept; else those of one round."""
    assert start("whole") == 0
    whole = results(tmp_path / "whole")

    def has_two_rows():
        return any(text.count("\n") == 2 for text in results(tmp_path / "killed").values())

    assert start("killed", should_stop=has_two_rows) == launch.STOPPED
    ahead, *others = [tmp_path / "killed" / p.parent.relative_to(tmp_path / "whole")
                      for p in sorted((tmp_path / "whole").glob("*/*/metrics.jsonl"))]  # fmt: skip
    assert rounds_kept(ahead) == (1, 2)
    for other in others:  # as if the second save had reached the first run alone
        for file in sorted((other / "checkpoints" / "2").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        (other / "checkpoints" / "2").rmdir()
    capsys.readouterr()
    assert start("killed") == 0
    assert "seeds 0, 1: resumes after round 1" in capsys.readouterr().out
    assert results(tmp_path / "killed") == whole

    first = tmp_path / "first"  # killed when one run alone had its first checkpoint: all start again
    shutil.copytree(tmp_path / "killed", first)
    for run in sorted(first.glob("*/*/checkpoints"))[1:]:
        shutil.rmtree(run)
        (run.parent / "metrics.jsonl").unlink()
    for summary in first.glob("*/*/summary.json"):  # no run is finished
        summary.unlink()
    assert [rounds_kept(run.parent) for run in sorted(first.glob("*/*/checkpoints"))] == [(2, 3)]
    assert start("first") == 0
    assert "[1-4/4] strength1 seeds 0, 1; strength2 seeds 0, 1: starts" in capsys.readouterr().out
    assert results(first) == whole

    assert start("parts", "--seed=1") == 0
    assert start("parts") == 0
    printed = capsys.readouterr().out
    assert "strength1 seed 0; strength2 seed 0: starts" in printed
    assert sorted(results(tmp_path / "parts")) == sorted(whole)


def test_groups_of_a_config(tmp_path):
    """Arms of one structure are one group, a strength of 0 and another layout are not."""
    config = quickstart.get_config("smoke")
    config.seeds = (0, 1)
    strength = {name: dict(methods=dict(feddecorr=dict(strength=s))) for name, s in (("a", 0.1), ("b", 0.3))}
    config.arms = {**strength, "none": dict(methods=dict(feddecorr=dict(strength=0.0)))}
    for choice, expected in (("together", [4, 2]), ("separate", [1] * 6)):
        config.engine.runs = choice
        study = resolve(config, tmp_path)
        federations = federations_of(study.cells, study.seeds)
        plans = {cell.name: groups.make_plan(cell.values, federations[cell.name][0]) for cell in study.cells}
        assert [len(group.runs) for group in groups.make_groups(study.runs, plans, federations)] == expected


@pytest.mark.parametrize(
    "change",
    [
        dict(methods=dict(moon=dict(strength=1.0))),
        dict(network=dict(name="small_cnn"), server=dict(batch_norm="local")),
    ],
    ids=["moon", "fedbn"],
)
def test_seeds_of_clients_that_remember_go_together_where_that_is_faster(tmp_path, monkeypatch, change):
    """With runs=auto and storage=auto, which ask for the size of the clients' states."""
    monkeypatch.setattr(together, "is_faster", lambda *_: True)
    asked = []
    monkeypatch.setattr(engine.memory, "fits", lambda size, devices: asked.append(size) or True)
    config = quickstart.get_config("smoke")
    config.seeds, config.arms = (0, 1), dict(only=change)
    study = resolve(config, tmp_path)
    federations = federations_of(study.cells, study.seeds)
    plans = {"only": groups.make_plan(study.cells[0].values, federations["only"][0])}
    asked.clear()
    (group,) = groups.make_groups(study.runs, plans, federations)
    run = group.runs["only", 0]
    _, state, _ = initialize(run, plans["only"].model, plans["only"].schedule)
    examples = engine.memory.size_in_bytes((run.federation.train, run.federation.ownership))
    of_clients = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
    assert len(group.runs) == 2 and asked == [examples + -(-2 // plans["only"].client_map.num_devices) * of_clients]


def test_seeds_go_apart_where_their_data_do_not_fit_on_the_devices(start, tmp_path, monkeypatch, capsys):
    """With runs=auto and storage=auto, which would choose the device and one program if there were room."""
    monkeypatch.setattr(together, "is_faster", lambda *_: True)
    monkeypatch.setattr(engine.memory, "free_bytes", lambda devices: 1.0)
    assert start("study", "--arm=strength1", "--config.rounds=1", runs="auto") == 0
    printed = capsys.readouterr().out
    assert "strength1 seed 0: starts" in printed and "on the host" in printed
