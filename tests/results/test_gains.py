"""What arms gain over a base arm, and whether rank or energy goes with it, from studies written by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from conftest import check
from study_files import configure, write_run

from fedjax_collapse.results import gains, load

ARMS = ("fedavg", "a", "b", "c", "d", "e")
ENERGY, RANK = "measured/adapters/beyond_2", "measured/adapters/effective_rank"


def write_study(path, other_partition=(), headlines=(), rows_of=None):
    """Arm i has, over FedAvg, i points of accuracy, minus i ranks, NC1 e^i times as large and i^2 % of less bias, 2 i
    ranks of personal models, i / 2 of R of local models, - i / 4 of personal ones, 3 i points in the worst decile."""
    for i, arm in enumerate(ARMS):
        for seed in (0, 1):
            row = {"accuracy": 0.5 + 0.01 * i + 0.1 * seed, "effective_rank": 20.0 - i + seed}
            row |= {"measured/nc/nc1": math.exp(i) * (seed + 1), "measured/probe/accuracy": 0.7}
            row |= {"measured/head/prediction_bias": 0.5 - i**2 / 100}
            row |= {"measured/personal/effective_rank_mean": 5.0 + 2 * i, "R_mean": i / 2 - 1.0}
            row |= {"measured/personal/R_mean": 0.5 - i / 4, "own/received/accuracy/worst_decile": 0.1 + 0.03 * i}
            rows = rows_of(i, seed) if rows_of else [row | {"accuracy": 0.1, "R_mean": 9.0}, row]
            counts = 4 + seed + 10 * ((arm, seed) in other_partition)
            write_run(path / "s" / arm / f"seed{seed}", rows, dict(headlines).get(arm, "server"), counts)
    configure(path, rounds=2, seeds=[0, 1], settings={"s": {}}, arms={arm: {} for arm in ARMS}, sweep={})
    return load(path)


def test_gains_are_those_of_equal_seeds_partitions_and_models(tmp_path):
    study = write_study(tmp_path, other_partition=[("b", 1)], headlines={"c": "personal"})
    found = gains.gains(study, "fedavg")
    others = [("s", arm, seed) for arm in "abde" for seed in (0, 1) if (arm, seed) != ("b", 1)]
    assert list(found.index) == others
    for (_, arm, _), row in found.iterrows():
        i = ARMS.index(arm)
        expected = [i, -i, i, -(i**2) / 100, 0, 2 * i, i / 2, -i / 4]
        np.testing.assert_allclose(row[["accuracy", *gains.METRICS]], expected, atol=1e-9)
    worst = gains.gains(study, "fedavg", "own/received/accuracy/worst_decile")["accuracy"]
    np.testing.assert_allclose(worst, [3 * ARMS.index(arm) for _, arm, _ in others])


def test_correlations_share_ranks_and_need_five_arms():
    rank, accuracy = [1.0, 2, 2, 5, 9, np.nan], [10.0, 40, 30, 50, 20, 0]
    index = pd.MultiIndex.from_product([["s"], list("abcdef"), [0]], names=["setting", "arm", "seed"])
    runs = pd.DataFrame({"effective_rank": rank, "accuracy": accuracy}, index=index)
    expected = np.corrcoef([0, 1.5, 1.5, 3, 4], [0, 3, 2, 4, 1])[0, 1]
    assert gains.correlations(runs).loc["s", "effective_rank"] == pytest.approx(expected)
    assert math.isnan(gains.correlations(runs[:4]).loc["s", "effective_rank"])


def test_kinds_of_arms():
    """A quarter of a dimension is no rise, and an arm without a probe is not counted."""
    rows = [
        ("s", "a", 0, 2.0, 1.5, -0.1, 1.0),
        ("s", "a", 1, -1.0, 0.5, -0.1, 1.0),
        ("s", "b", 0, -3.0, 4.0, 0.1, 1.0),
        ("s", "c", 0, 3.0, 0.25, -0.1, -1.0),
        ("s", "d", 0, 1.0, 5.0, -0.1, 2.0),
        ("s", "e", 0, 9.0, 5.0, -0.1, math.nan),
    ]
    names = ["setting", "arm", "seed", "accuracy", "effective_rank", "bias", "probe"]
    found = gains.kinds(pd.DataFrame(rows, columns=names).set_index(names[:3]))
    assert len(found) == 8 and found["arms"].sum() == 4
    assert found.loc[(True, True, True)].tolist() == [2, 2, 1, 0.75]
    assert found.loc[(True, False, True)].tolist() == [1, 0, 0, -3]
    assert found.loc[(False, True, False)].tolist() == [1, 1, 1, 3]
    assert found.loc[(False, False, False)].tolist()[:3] == [0, 0, 0]


def test_energies_and_their_correlations(tmp_path):
    """Arm i has energy 2^-i in round 1, 4^-i in round 3, and i points of accuracy less; the last run has diverged."""

    def rows(i, seed):
        last = None if (i, seed) == (5, 1) else 0.8 - 0.01 * i + 0.1 * seed
        first = {"accuracy": 0.5, ENERGY: 2.0**-i, RANK: 8.0}
        return [first, {"accuracy": 0.5}, {"accuracy": last, ENERGY: 4.0**-i, RANK: 3.0}]

    study = write_study(tmp_path, rows_of=rows)
    found = gains.energies(study, "fedavg")
    assert len(found) == 12 and found.loc["s", "fedavg"]["gain"].isna().all()
    for (_, arm, seed), row in found[:-1].iterrows():
        i = ARMS.index(arm)
        assert row[:4].tolist() == pytest.approx([2.0**-i, 4.0**-i, 3.0, 80 - i + 10 * seed])
        assert not i or row["gain"] == pytest.approx(-i)
    correlation = gains.energy_correlations(found.drop(("s", "e", 1))).loc["s"]
    assert correlation["n_arms"] == 6 and correlation["n_runs"] == 9 and correlation["runs"] == pytest.approx(1)


def test_wrong_names_are_one_line(tmp_path):
    study = write_study(tmp_path)
    check(r"'none': expected one of a, b, c, d, e, fedavg$", gains.gains, study, "none")
    message = "no arm has a run with own/x of equal seed and partition as 'fedavg'$"
    check(message, gains.gains, study, "fedavg", "own/x")
    check(f"^unknown measurement '{ENERGY}': did you mean ", gains.energies, study, "fedavg")
