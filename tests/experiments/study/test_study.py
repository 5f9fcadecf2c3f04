"""What a study keeps of its config and of its starts, and what it does once for each cell."""

import json
import subprocess
import sys

import jax
import pytest
from conftest import check
from ml_collections import ConfigDict
from small_studies import write_config

from experiments import launch
from experiments.configs import quickstart
from experiments.study import groups, preparing, provenance, study, summaries
from experiments.study.failures import RunsFailed
from experiments.study.processes.claim import claimed
from experiments.study.resolving import resolve
from fedjax_collapse import UserError
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.engine import rounds
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.simulation import Hardware, simulate_runs
from fedjax_collapse.training.outline import Outline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered")]

ARMS = ("zeta", "alpha", "mid")


@pytest.fixture
def config() -> ConfigDict:
    config = quickstart.get_config("smoke")
    config.engine.runs = "separate"
    config.arms = dict(zeta=dict(), alpha=dict(training=dict(epochs=1)), mid=dict(partition=dict(name="iid")))
    return config


def test_arms_changed_on_the_command_line_keep_the_order(tmp_path):
    file = write_config(tmp_path, "config.arms = dict(zeta={}, alpha=dict(training=dict(epochs=1)), mid={})")
    changes = ["--config.arms.mid.training.epochs=2", "--config.arms.alpha.training.epochs=3"]
    assert tuple(launch.parse([file, *changes]).config["arms"]) == ARMS


def test_one_process_in_a_folder(config, tmp_path, monkeypatch):
    """Another one is refused while the first is in it; what a start that was killed at once left is no obstacle."""
    monkeypatch.setattr(study, "make_groups", lambda *_: [])
    monkeypatch.setattr(summaries, "write_report", lambda study: study)
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "config.json.tmp").write_text("{")
    code = "import sys, pathlib; from experiments.study.processes.lock import only_process_in as only\n"
    child = [sys.executable, "-c", f"{code}with only(pathlib.Path(sys.argv[1])): pass", str(folder)]
    with claimed(folder, plain(config)):
        assert "another process runs this study" in subprocess.run(child, capture_output=True, text=True).stderr
    assert subprocess.run(child).returncode == 0
    assert study.run_study(resolve(config, folder))


def test_a_folder_whose_checkpoints_could_not_be_read(config, tmp_path):
    for folder in (tmp_path / "a[1]", tmp_path / "a\\b"):
        check("checkpoints cannot be in a path with", study.run_study, resolve(config, folder))
        assert not folder.exists()


def test_programs_are_dropped_before_memory_maps_run_out(config, tmp_path, monkeypatch):
    """Before each group, and only if they take more than half of what a process may have."""
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)

    def train_group(group, console, should_stop, take):
        console.start_runs(list(group.runs), 0, 2)
        program(1.0)
        raise UserError("this is enough")

    monkeypatch.setattr(study, "train_group", train_group)
    (tmp_path / "most").write_text("100000\n")
    for name, file in (("_MOST_MAPS", "most"), ("_MAPS", "maps")):
        monkeypatch.setattr(preparing, name, tmp_path / file)
    for maps, times in ((50000, 1), (50001, 1 + len(ARMS))):
        (tmp_path / "maps").write_text("a map\n" * maps)
        with pytest.raises(RunsFailed):
            study.run_study(resolve(config, tmp_path / "study"))
        assert len(traced) == times
    monkeypatch.setattr(preparing, "_MAPS", tmp_path / "absent")
    preparing.release_programs()


START = {"started": "2026-01-01T00:00:00+00:00", "command": "launch.py", "git": "a", "devices": ["cpu:0"]}


def starts(folder) -> list[dict]:
    return json.loads((folder / "provenance.json").read_text())["starts"]


def test_every_start_is_kept_and_equal_ones_are_not_repeated(tmp_path):
    later, other = START | {"started": "2026-02-02T00:00:00+00:00"}, START | {"git": "b"}
    for start, expected in ((START, [START]), (later, [START]), (other, [START, other])):
        provenance.record_start(tmp_path, start)
        assert starts(tmp_path) == expected
    provenance.record_start(tmp_path, later)  # back to the first revision, after another one
    assert starts(tmp_path) == [START, other, later]


def test_a_round_is_traced_once_for_a_cell(config, tmp_path, monkeypatch):
    """When its first run starts; the check before that has an outline of the network."""
    traced, run_round = [], rounds._run_round

    def run(spec, *arguments):
        traced.append(type(spec.model))
        return run_round(spec, *arguments)

    monkeypatch.setattr(rounds, "_run_round", run)
    config.arms, config.seeds, config.rounds, config.engine.layout = dict(only=dict()), (0, 1), 1, "chunked"
    config.network = dict(name="mlp", hidden=(4,))
    spec = resolve(config, tmp_path)
    (cell,) = spec.cells
    federations = preparing.federations_of(spec.cells, spec.seeds)
    plan = preparing.plan_of(cell, federations[cell.name][0])
    for group in groups.make_groups(spec.runs, {cell.name: plan}, federations):
        hardware = Hardware(group.client_map, group.run_map)
        simulate_runs(list(group.runs.values()), plan.model, plan.schedule, hardware)
    assert traced == [Outline, Model]
