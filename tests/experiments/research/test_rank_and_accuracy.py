"""What methods change in accuracy and rank, from a study written by hand; and the config of the real one."""

import csv
import json
import math
from types import MappingProxyType

import numpy as np
import pytest

from experiments.configs import personal_collapse
from experiments.configs import rank_and_accuracy as config_file
from experiments.research.rank_and_accuracy import METRICS, correlations, differences, divided, left_out, main, spearman
from fedjax_collapse.config.cells import arms_of, settings_of
from fedjax_collapse.results import load

ARMS = ("fedavg", "a", "b", "c", "d", "e")


def write_study(path, arms=ARMS, other_partition=(), headlines=MappingProxyType({})):
    """Arm i has, over FedAvg, i points of accuracy, minus i ranks, NC1 e^i times as large and i^2 % of less bias, 2 i
    ranks of personal models, i / 2 of R of local models, - i / 4 of personal ones, 3 i points in the worst decile."""
    for i, arm in enumerate(arms):
        for seed in (0, 1):
            run = path / "alpha 0.1" / arm / f"seed{seed}"
            run.mkdir(parents=True)
            row = {"round": 3, "accuracy": 0.5 + 0.01 * i + 0.1 * seed, "effective_rank": 20.0 - i + seed}
            row |= {"measured/nc/nc1": math.exp(i) * (seed + 1), "measured/nc/local_nc1": 7.0}
            row |= {"measured/head/prediction_bias": 0.5 - i**2 / 100, "measured/probe/accuracy": 0.7}
            row |= {"measured/personal/effective_rank_mean": 5.0 + 2 * i}
            row |= {"R_mean": i / 2 - 1.0, "measured/personal/R_mean": 0.5 - i / 4}
            row |= {"own/received/accuracy/worst_decile": 0.1 + 0.03 * i}
            (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            (run / "summary.json").write_text(json.dumps({"headline": headlines.get(arm, "server model")}))
            counts = np.full((3, 2), 4 + seed + 10 * ((arm, seed) in other_partition))
            np.savez(run / "partition.npz", class_counts=counts)
    config = dict(rounds=3, seeds=[0, 1], settings={"alpha 0.1": {}}, arms={arm: {} for arm in arms}, sweep={})
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_differences_are_those_of_equal_seeds_and_partitions(tmp_path):
    rows = differences(load(write_study(tmp_path, other_partition=[("b", 1)])), "fedavg")
    assert [(row["arm"], row["seed"]) for row in rows if row["arm"] in "ab"] == [("a", 0), ("a", 1), ("b", 0)]
    assert {row["setting"] for row in rows} == {"alpha 0.1"}
    for row in rows:
        i = ARMS.index(row["arm"])
        found = [row[name] for name in ("accuracy", *METRICS)]
        np.testing.assert_allclose(found, [i, -i, i, -(i**2) / 100, 0, 2 * i, i / 2, -i / 4], atol=1e-9)


def test_arms_whose_accuracy_is_of_something_else_are_left_out(tmp_path, capsys):
    study = load(write_study(tmp_path / "s", headlines={"c": "personal models"}))
    assert "c" not in {row["arm"] for row in differences(study, "fedavg")}
    assert left_out(study, "fedavg") == ["alpha 0.1/c is left out: their accuracy is of something else"]
    assert main([str(tmp_path / "s")]) == 0
    assert "alpha 0.1/c is left out" in capsys.readouterr().out


def test_correlations_of_a_setting(tmp_path):
    rows = differences(load(write_study(tmp_path)), "fedavg")
    (found,) = correlations(rows)
    assert (found["arms"], found["higher_rank"], found["higher_accuracy"], found["and_higher_accuracy"]) == (5, 0, 5, 0)
    assert [found[name] for name in ("effective_rank", "nc1", "bias")] == pytest.approx([-1, 1, -1])
    assert math.isnan(found["probe"])


def test_arms_divided_by_what_they_change():
    """A quarter of a dimension is no rise, and an arm without a probe is not counted."""
    names = ("arm", "seed", "accuracy", "effective_rank", "bias", "probe")
    values = [
        ("a", 0, 2.0, 1.5, -0.1, 1.0),
        ("a", 1, -1.0, 0.5, -0.1, 1.0),
        ("b", 0, -3.0, 4.0, 0.1, 1.0),
        ("c", 0, 3.0, 0.25, -0.1, -1.0),
        ("d", 0, 1.0, 5.0, -0.1, 2.0),
        ("e", 0, 9.0, 5.0, -0.1, math.nan),
    ]
    of_all = dict(setting="s", method="m", nc1=0.0, personal_rank=0.0, local_r=0.0, personal_r=0.0)
    rows = [dict(zip(names, row, strict=True), **of_all) for row in values]
    found = {tuple(row.values())[:3]: tuple(row.values())[3:] for row in divided(rows)}
    assert len(found) == 8 and sum(counts[0] for counts in found.values()) == 4
    assert found[True, True, True] == (2, 2, 1, 0.75)
    assert found[True, False, True] == (1, 0, 0, -3)
    assert found[False, True, False] == (1, 1, 1, 3)
    assert found[False, False, False][:3] == (0, 0, 0) and math.isnan(found[False, False, False][3])


def test_gains_of_another_accuracy(tmp_path, capsys):
    """Of the worst decile; there is none of fine-tuned models."""
    study = write_study(tmp_path / "s")
    rows = differences(load(study), "fedavg", "worst_decile")
    np.testing.assert_allclose([row["accuracy"] for row in rows], [3 * ARMS.index(row["arm"]) for row in rows])
    assert main([str(study), "--score=finetuned"]) == 2
    assert "no run has own/finetuned/accuracy/weighted; choose another --score" in capsys.readouterr().err


def test_spearman_shares_ranks_and_leaves_out_what_is_not_finite():
    first, second = np.array([1.0, 2, 2, 5, 9, np.nan]), np.array([10.0, 40, 30, 50, 20, 0])
    ranks = np.array([0, 1.5, 1.5, 3, 4]), np.array([0, 3, 2, 4, 1])
    assert spearman(first, second) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert math.isnan(spearman(first[:4], second[:4])) and math.isnan(spearman(np.ones(5), second[:5]))


def test_the_command(tmp_path, capsys):
    study = write_study(tmp_path / "study")
    assert main([str(study), f"--out={tmp_path / 'out'}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "| alpha 0.1 | 5 | 0 | 0 | 5 | −1.00 | +1.00 | −1.00 | +1.00 | +1.00 | −1.00 |" in shown
    assert "| no | yes | no | 5 | 5 | 5 | +3.0 |" in shown and "| yes | yes | yes | 0 | 0 | 0 | - |" in shown
    with (tmp_path / "out" / "runs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10
    assert all((tmp_path / "out" / f"rank_and_accuracy.{kind}").stat().st_size > 1000 for kind in ("svg", "pdf", "png"))


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--base=nothing"], "'nothing': expected one of a, b, c, d, e, fedavg"),
        (["--out=/proc/none"], "/proc/none: cannot be written"),
    ],
)
def test_wrong_input(tmp_path, capsys, arguments, line):
    assert main([str(write_study(tmp_path)), *arguments]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_runs_without_measurements(tmp_path, capsys):
    study = write_study(tmp_path / "s")
    for file in study.rglob("metrics.jsonl"):
        file.write_text(json.dumps({"round": 3, "accuracy": 0.5}) + "\n")
    assert main([str(study)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no run has any of effective_rank, nc/nc1,") and error.count("\n") == 1


def test_the_config_sweeps_each_method_alone():
    config = config_file.get_config("digits").to_dict()
    arms = arms_of(config)
    swept = {name: arm.values for name, arm in arms.items() if arm.values}
    assert all(len(values) == 1 for values in swept.values()) and "fedper" not in arms
    assert set(settings_of(config)) == {f"digits {regime}" for regime in config_file.REGIMES["digits"]}
    with pytest.raises(ValueError, match="expected all, digits, mnist5k, wide, glyphs or smoke"):
        config_file.get_config("mnist")


def test_the_config_of_personal_models_is_offline():
    offline, digits = (personal_collapse.get_config(*arg).to_dict() for arg in ((), ("digits",)))
    assert offline == personal_collapse.get_config("offline").to_dict()
    assert list(settings_of(offline)) == ["digits", "mnist5k"] and list(settings_of(digits)) == ["digits"]
    assert arms_of(offline).keys() == arms_of(digits).keys() > {"local", "fedavg", "ditto_decov"}
    with pytest.raises(ValueError, match="expected offline, digits, mnist5k or smoke"):
        personal_collapse.get_config("all")
