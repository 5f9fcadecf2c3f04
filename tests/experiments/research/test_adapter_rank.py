"""Energy beyond a rank and accuracy, from a study written by hand; and the configs of the real one."""

import csv
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.configs.adapters import pretrain, rank_collapse, vit_tables
from experiments.research.adapter_rank import Curve, correlations, curves_of, main, table
from experiments.study.resolving import resolve
from fedjax_collapse.config import build
from fedjax_collapse.core.masks import by_path
from fedjax_collapse.results import load
from fedjax_collapse.results.paper import paper_of

ARMS = ("fedit", "a", "b", "c", "d", "e")
METRIC = "measured/adapters/beyond_2"


def write_study(path):
    """Arm i has energy 2^-i in round 1 and 4^-i in round 3, and i points of accuracy less, but for one run of e."""
    for i, arm in enumerate(ARMS):
        for seed in (0, 1):
            run = path / "shards" / arm / f"seed{seed}"
            run.mkdir(parents=True)
            rows = [
                {"round": 1, "accuracy": 0.5, METRIC: 2.0**-i, "measured/adapters/effective_rank": 8.0},
                {"round": 2, "accuracy": 0.5},
                {"round": 3, "accuracy": 0.8 - 0.01 * i + 0.1 * seed, METRIC: 4.0**-i},
            ]
            rows[2] |= {"accuracy": None} if (arm, seed) == ("e", 1) else {}
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (run / "summary.json").write_text(json.dumps({"headline": "server model"}))
            np.savez(run / "partition.npz", class_counts=np.full((3, 2), 4 + seed))
    config = dict(rounds=3, seeds=[0, 1], settings={"shards": {}}, arms={arm: {} for arm in ARMS}, sweep={})
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_curves_and_their_gains(tmp_path):
    curves = curves_of(load(write_study(tmp_path)), "fedit", METRIC)
    assert [(curve.arm, curve.seed) for curve in curves[:3]] == [("fedit", 0), ("fedit", 1), ("a", 0)]
    for curve in curves[:-1]:
        i = ARMS.index(curve.arm)
        np.testing.assert_array_equal(curve.rounds, [1, 3])
        np.testing.assert_allclose(curve.energy, [2.0**-i, 4.0**-i])
        assert curve.gain == pytest.approx(-i) and curve.accuracy == pytest.approx(80 - i + 10 * curve.seed)
    assert math.isnan(curves[-1].gain)
    assert correlations(curves, "fedit").splitlines()[-1].split()[3::2] == ["+1.00", "6", "+1.00", "9"]


def test_the_interval_of_gains():
    """3 ± t s / sqrt(3), with the quantile t = 4.3027 of two degrees of freedom and s = 2.6458; NaN has no pair."""
    at = np.ones(1)
    gains = {"fedit": [0.0] * 4, "a": [1.0, 2.0, 6.0, math.nan], "b": [-1.0]}
    curves = [Curve("s", arm, seed, at, at, at, 50.0, g) for arm, own in gains.items() for seed, g in enumerate(own)]
    *_, fedit, a, b = (" ".join(line.split()) for line in table(curves, "fedit").splitlines())
    assert fedit.endswith("| 50.0 ± 0.0 | | | |")
    assert a.endswith("| +3.0 | −3.6 to +9.6 | 3 of 3 |") and b.endswith("| −1.0 | - | 0 of 1 |")


def test_a_setting_of_which_only_the_base_has_run(tmp_path):
    study = write_study(tmp_path / "study")
    for arm in ARMS[1:]:
        shutil.rmtree(study / "shards" / arm)
    assert main([str(study), f"--out={tmp_path / 'out'}"]) == 0
    assert (tmp_path / "out" / "adapter_rank.svg").stat().st_size > 1000


def test_the_command_writes_runs_and_figure(tmp_path, capsys):
    study = write_study(tmp_path / "study")
    assert main([str(study), f"--out={tmp_path / 'out'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "| b | 2 | 0.2500 ± 0.0000 | 0.0625 ± 0.0000 |" in printed and "| −2.0 | −2.0 to −2.0 | 0 of 2 |" in printed
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24 and rows[3]["energy"] == "1.0" and rows[-1]["gain"] == ""
    assert (tmp_path / "out" / "adapter_rank.svg").stat().st_size > 1000
    assert main([str(study), "--base=none"]) == 2 and "'none': expected one of a" in capsys.readouterr().err
    assert main([str(study), "--beyond=4"]) == 2 and "has measured/adapters/beyond_4" in capsys.readouterr().err


def test_the_study_of_rank_collapse():
    """Every arm has adapters of one scale, and the mixed ranks are those of the clients."""
    study = resolve(rank_collapse.get_config(), Path())
    assert list(study.config["settings"]) == [
        f"{p}-lr {rate}" for p in rank_collapse.DATA for rate in ("0.5", "1", "0.2, 24 steps")
    ]
    made = set()
    for cell in study.cells:
        algorithm = build.algorithm(cell.values)
        assert algorithm.training.freeze.startswith("base")
        if repr(cell.values["network"]) not in made:
            made.add(repr(cell.values["network"]))
            adapters = build.model(_without_weights(cell.values), _stand_in(10, (28, 28, 1))).adapters
            assert adapters.scale(2) == adapters.scale(adapters.rank) == 1
        for method in algorithm.methods.values():
            ranks = getattr(method, "ranks", rank_collapse.RANKS)
            assert ranks == rank_collapse.RANKS and len(ranks) == cell.values["clients"]
    with pytest.raises(ValueError, match="expected all, shifted, shards, dirichlet or smoke"):
        rank_collapse.get_config("shard")
    smoke = rank_collapse.get_config("smoke")
    assert (
        smoke.settings.shifted.network.weights == "" and smoke.rounds == 2 and set(smoke.arms) < set(rank_collapse.ARMS)
    )


@pytest.mark.parametrize("arg", ["", "head", "smoke"])
def test_pretraining_is_of_one_client(arg):
    study = resolve(pretrain.get_config(arg), Path())
    (cell,) = study.cells
    training = build.algorithm(cell.values).training
    assert (
        cell.values["clients"] == 1 and not training.momentum_reset and (training.freeze == "body") == (arg == "head")
    )
    with pytest.raises(ValueError, match="expected nothing, head or smoke"):
        pretrain.get_config("tail")


@pytest.mark.parametrize("arg", vit_tables.STUDIES)
def test_published_settings_are_made_without_data(arg):
    """Every arm's algorithm and network, whose adapters are those of queries and values; the paper's numbers."""
    study = resolve(vit_tables.get_config(arg), Path())
    shape, made = (224, 224, 3), set()
    for cell in study.cells:
        algorithm = build.algorithm(cell.values)
        build.schedule(cell.values)
        if repr(cell.values["network"]) not in made:
            made.add(repr(cell.values["network"]))
            model = build.model(_without_weights(cell.values), _stand_in(100, shape))
            algorithm.check(model)
            trained = [path for path in by_path(model.variable_shapes().params) if path.endswith("lora_a")]
            assert len(trained) == 2 * model.module.dimensions()[1]
    paper = paper_of(study.config)
    assert not paper.comparable and list(paper.values) == list(study.config["settings"])
    assert all(set(of_arms) <= set(study.config["arms"]) for of_arms in paper.values.values())
    with pytest.raises(ValueError, match="expected one of lora_fair, fed_hello, hralora, hilora"):
        vit_tables.get_config("hi")


def _without_weights(values):
    return {**values, "network": {**values["network"], "weights": ""}}


def _stand_in(num_classes, shape):
    return SimpleNamespace(num_classes=num_classes, input_shape=shape, input_dtype=float, task="classification")
