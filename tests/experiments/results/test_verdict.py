"""The finding of a study, and the figure that has it as its title."""

import json

import numpy as np
import pytest
from test_report import make_study, rewrite_rows

from experiments.commands import report
from experiments.results.plotting.drawing import save_figure
from experiments.results.plotting.headline import headline
from experiments.results.reading import read_study
from experiments.results.verdict import verdict


def study_of(path, accuracies, ranks=(9.0, 9.0, 9.0), arms=("fedavg", "feddecorr", "other")):
    """A study of three seeds: FedAvg is right on 50 %, with a rank of 5, and the second arm as it is given here."""
    make_study(path, arms=arms, rounds=2, features=4)
    config = json.loads((path / "config.json").read_text())
    config["arms"] = {arm: {"methods": {"feddecorr": {}}} if arm == "feddecorr" else {} for arm in arms}
    (path / "config.json").write_text(json.dumps(config))
    for arm in arms:
        for seed in range(3):
            own = (accuracies[seed], ranks[seed]) if arm == "feddecorr" else (0.5, 5.0)
            last = dict(zip(("accuracy", "effective_rank"), own, strict=True))
            rewrite_rows(
                path / arm / f"seed{seed}" / "metrics.jsonl", lambda rows, last=last: [rows[0], rows[1] | last]
            )
            np.savez(path / arm / f"seed{seed}" / "partition.npz", class_counts=np.full((2, 2), seed))
    return read_study(path)


@pytest.mark.parametrize(
    ("accuracies", "ranks", "sentence"),
    [
        (
            (0.6, 0.7, 0.51),
            (6.0, 6.0, 6.0),
            "feddecorr raises effective rank most: 1.2 times that of fedavg, higher in 3 of 3 seeds (1.2 to 1.2). "
            "feddecorr raises accuracy most: +10.3 points over fedavg, higher in 3 of 3 seeds (+1.0 to +20.0)",
        ),
        (
            (0.6, 0.7, 0.51),
            (6.0, 8.5, 5.0),
            "feddecorr raises effective rank most: 1.3 times that of fedavg, higher in 2 of 3 seeds (1.0 to 1.7). "
            "feddecorr raises accuracy most: +10.3 points over fedavg, higher in 3 of 3 seeds (+1.0 to +20.0)",
        ),
        (
            (0.6, 0.7, 0.49),
            (None, 6.0, 6.0),
            "feddecorr raises accuracy most: +9.7 points over fedavg, higher in 2 of 3 seeds (−1.0 to +20.0)",
        ),
        (
            (0.6, 0.2, 0.5),
            (4.0, 4.0, 5.5),
            "No arm raises effective rank: feddecorr comes nearest with 0.9 times that of fedavg, higher in 1 of 3 "
            "seeds (0.8 to 1.1). No arm raises accuracy: feddecorr comes nearest with −6.7 points over fedavg, higher "
            "in 1 of 3 seeds (−30.0 to +10.0)",
        ),
        (
            (0.6, None, None),
            (6.0, 6.0, 6.0),
            "feddecorr raises effective rank most: 1.2 times that of fedavg, in the only seed. "
            "feddecorr raises accuracy most: +10.0 points over fedavg, in the only seed",
        ),
        ((None, None, None), (6.0, 6.0, 6.0), ""),
    ],
)
def test_it_says_what_the_numbers_say(tmp_path, accuracies, ranks, sentence):
    assert verdict(study_of(tmp_path / "study", accuracies, ranks)) == sentence


def test_what_raises_rank_and_what_raises_accuracy_may_be_two_arms(tmp_path):
    """Each is named with what it does to the other; an arm without methods is none of them."""
    study = study_of(tmp_path / "study", (0.4, 0.7, 0.5), (10.0, 15.0, 20.0))
    study.config["arms"]["other"] = {"methods": {"ccvr": {}}}
    for seed in range(3):
        rewrite_rows(
            study.path / "other" / f"seed{seed}" / "metrics.jsonl",
            lambda rows, seed=seed: [rows[0], rows[1] | {"accuracy": 0.6 + seed / 10, "effective_rank": 4.0}],
        )
    (study.path / "config.json").write_text(json.dumps(study.config))
    assert verdict(read_study(study.path)) == (
        "feddecorr raises effective rank most: 3.0 times that of fedavg, higher in 3 of 3 seeds (2.0 to 4.0), with "
        "+3.3 points of accuracy, higher in 1 of 3 seeds (−10.0 to +20.0). other raises accuracy most: +20.0 points "
        "over fedavg, higher in 3 of 3 seeds (+10.0 to +30.0), at 0.8 times the rank"
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("recall_at_5", "recall at 5 most: +20.0 points over fedavg, "), ("squared_error", "")],
)
def test_a_task_without_accuracy_has_its_score(tmp_path, name, sentence):
    study_of(path := tmp_path / "study", (0.6, 0.7, 0.8))
    for file in path.rglob("metrics.jsonl"):
        file.write_text(file.read_text().replace('"accuracy"', f'"{name}"'))
    found = verdict(read_study(path))
    assert sentence in found and bool(found) == bool(sentence)


def test_without_methods_or_a_plain_arm_there_is_none(tmp_path):
    study = study_of(tmp_path / "study", (0.6, 0.7, 0.8))
    for arms in ({"fedavg": {}}, {"feddecorr": {"methods": {"feddecorr": {}}}}, {"fedavg": None}):
        study.config["arms"].clear()
        study.config["arms"].update(arms)
        assert verdict(study) == ""


def test_runs_on_other_partitions_are_not_compared(tmp_path):
    study_of(path := tmp_path / "study", (0.6, 0.7, 0.1))
    np.savez(path / "feddecorr" / "seed2" / "partition.npz", class_counts=np.eye(2, dtype=int))
    assert verdict(read_study(path)).endswith("+15.0 points over fedavg, higher in 2 of 2 seeds (+10.0 to +20.0)")


@pytest.mark.usefixtures("unrendered")
def test_the_report_prints_it_and_has_it(tmp_path, capsys):
    study = study_of(tmp_path / "study", (0.6, 0.7, 0.51), arms=("fedavg", "feddecorr"))
    assert report.main([str(study.path), "--headline=figure.jpg"]) == 2
    out, err = capsys.readouterr()
    assert verdict(study) in out and "suffix of --headline 'jpg'" in err
    assert f"<strong>{verdict(study)}.</strong>" in (study.path / "report.html").read_text()


def test_the_headline_is_the_same_file_again(tmp_path):
    study = study_of(tmp_path / "study", (0.6, 0.7, 0.51), arms=("fedavg", "feddecorr"))
    files = [tmp_path / f"{name}.svg" for name in "ab"]
    for file in files:
        save_figure(headline(study), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_headline_shows_the_mean_and_every_seed(tmp_path):
    study = study_of(tmp_path / "study", (0.6, 0.7, 0.8), arms=("fedavg", "feddecorr"))
    figure = headline(study)
    assert figure.get_suptitle().split() == verdict(study).split() and figure.get_suptitle().count("\n") == 1
    accuracy, rank, spectrum = figure.axes
    for axes, mean, ends in ((accuracy, 70, {60, 70, 80}), (rank, 9, {9})):
        *seeds, _, line = axes.lines  # the means of both arms come last
        assert {round(of.get_ydata()[-1], 9) for of in seeds[3:]} == ends
        assert line.get_ydata()[-1] == pytest.approx(mean)
    for line in spectrum.lines:
        assert 99.5 < line.get_ydata().sum() <= 100 + 1e-9
