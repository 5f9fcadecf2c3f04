"""A study from a script: the same results in memory and from its folder, which is a study for the report."""

import csv

import jax
import pandas as pd
from conftest import cases, check
from small_studies import tree

import fedjax_collapse as fc
from experiments.commands import report
from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, results
from fedjax_collapse.results.comparing import verdict
from fedjax_collapse.results.tables import difference_tables, final_table

TRAINING = LocalTraining(epochs=1, batch_size=16, learning_rate=0.1)
ARMS = {"fedavg": FedAvg(TRAINING), "feddecorr": FedAvg(TRAINING, {"feddecorr": FedDecorr(0.1)})}


def run(federation, network, **options):
    return fc.study(federation, network, ARMS, **dict(rounds=2, seeds=(0, 1), progress=False) | options)


def test_a_study_with_a_folder_and_without(federation, network, tmp_path, capsys):
    """Of two arms and two seeds, with differences, as their partitions are equal."""
    found, saved = run(federation, network), run(federation, network, folder=tmp_path / "s")
    pd.testing.assert_frame_equal(found.frame, saved.frame[list(found.frame)], check_dtype=False)
    assert list(map(tuple, found.frame[["arm", "seed", "round"]].values)) == [
        (arm, seed, round) for arm in ARMS for seed in (0, 1) for round in (1, 2)
    ]
    alone = fc.simulate(federation, network, ARMS["feddecorr"], rounds=2, key=jax.random.key(1))
    assert found.of_arm("feddecorr")[1].metrics[-1]["accuracy"] == alone.metrics[-1]["accuracy"]
    for study in (found, saved, results.load(tmp_path / "s")):
        assert [row[-1] for row in final_table(study).rows[1:]] == ["2", "2"]
        (table,) = difference_tables(study)
        assert table.title.endswith("from fedavg") and table.rows[1][0] == "feddecorr" and table.rows[1][4] == "2"
        assert verdict(study) == verdict(found) != ""
    assert repr(found) == "Results(.: 4 runs of fedavg, feddecorr)"
    before = tree(tmp_path / "s")
    again = run(federation, network, folder=tmp_path / "s")
    assert tree(tmp_path / "s") == before and again.frame.equals(saved.frame)
    assert report.main([str(tmp_path / "s"), "--format=csv"]) == 0
    rows = list(csv.DictReader((tmp_path / "s" / "export" / "results.csv").read_text().splitlines()))
    assert [(row["Arm"], row["Seed"]) for row in rows] == [(arm, seed) for arm in ARMS for seed in "01"]


def test_a_federation_of_each_seed_and_more_rounds(federation, network, tmp_path):
    """Runs of other seeds have other partitions, and those that are not done are continued."""

    first, *others = federation.owned_rows()

    def of_seed(seed):
        return federation.with_partition([first[seed:], *others])

    short = run(of_seed, network, rounds=1, folder=tmp_path)
    assert set(short.frame["round"]) == {1}
    assert [of.partition["class_counts"].sum() for of in short.of_arm("fedavg")] == [110, 109]
    longer = run(of_seed, network, folder=tmp_path)
    assert longer.rounds == 2 and len(longer.frame) == 8 and not longer.unfinished


@cases(
    (dict(seeds=()), "study: no seeds, expected at least one"),
    (dict(arms={}), "study: no arms, expected at least one"),
    (dict(arms={"a/b": FedAvg(TRAINING)}, folder="s"), "arm 'a/b': its runs are in a folder of that name"),
)
def test_what_makes_no_sense(options, words, federation, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(words, fc.study, federation, network, **dict(arms=ARMS, rounds=1) | options)
    assert not any(tmp_path.iterdir())
