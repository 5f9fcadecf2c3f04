"""What tables show: arms by settings, differences, the best and what is as good, dead networks, rounds to a target."""

import dataclasses
import html
import json
import math

import numpy as np
import pytest
from conftest import check
from scipy import stats
from study_files import ARMS, LIKE, configure, rewrite, unfinish, write_arms, write_cells, write_run

from experiments.commands import report
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.results import comparing, load, tables
from fedjax_collapse.results.comparing import compare, comparison, dead_notes, is_at_chance, recommendations
from fedjax_collapse.results.metrics import ACCURACY, R, metric_of
from fedjax_collapse.results.page import render
from fedjax_collapse.results.writing import Alike, Bold
from fedjax_collapse.run.measurement import HEADLINES

DECORR = CellName("", ARMS[1])


def test_arms_by_settings_and_means_over_settings(tmp_path):
    """A mean is of arms that all of its settings have."""
    cells = load(write_cells(tmp_path))
    assert tables.pivot(cells).rows == [
        ["Arm", "a 1", "b", "both"],
        ["base", "50.50 ± 0.71 (2)", "50.50 ± 0.71 (2)", "50.50"],
        [ARMS[1], "61.00 ± 1.41 (2)", "61.00 ± 1.41 (2)", "61.00"],
        [ARMS[2], "73.00 (1)", "71.50 ± 2.12 (2)", "72.25"],
    ]
    assert tables.pivot(cells, R).rows[2][1:] == ["−1.000 ± 0.000 (2)"] * 2 + ["−1.000"]
    missing = dataclasses.replace(cells, runs=[run for run in cells.runs if str(run.cell) != "b/base"])
    assert tables.pivot(missing).rows[1] == ["base", "50.50 ± 0.71 (2)", "-", "-"]


def test_a_comparison_by_hand():
    """Rounding does not count as a difference."""
    found = compare([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found[:3] == (3.0, pytest.approx(math.sqrt(2.5)), 5)
    assert (found.low, found.high) == pytest.approx((3 - 2.776445 * math.sqrt(0.5), 3 + 2.776445 * math.sqrt(0.5)))
    assert found.p == 0.0625 and not found.may_be_zero and compare([-1.0, 2.0]).may_be_zero
    one, none, equal = compare([0.5]), compare([]), compare([0.1 + 0.2 - 0.3] * 3)
    assert one.mean == 0.5 and one.n == 1 and not one.has_interval and not one.may_be_zero and math.isnan(one.p)
    assert none.n == 0 and math.isnan(none.mean)
    assert equal.p == 1 and compare([0.0, 0.0]).p == 1 and compare([0.0, 0.0]).may_be_zero


def test_the_table_of_differences(tmp_path):
    study = write_arms(tmp_path, LIKE)
    (table,) = tables.difference_tables(load(study))
    assert table.title == "Accuracy: differences from base"
    assert table.rows[0] == ["Arm", "Difference (points)", "95 % interval", "p (Wilcoxon)", "Pairs"]
    low, high = stats.t.interval(0.95, 2, loc=-10, scale=1 / math.sqrt(3))
    assert table.rows[2] == ["far", "−10.00 ± 1.00", f"−{-low:.2f} to −{-high:.2f}", "0.25", "3"]
    assert "With 3 pairs or fewer, p cannot be below 0.25." in table.notes[0]
    unfinish(study, "base/seed1", "base/seed2")
    (table,) = tables.difference_tables(load(study))
    assert table.rows[2] == ["far", "−10.00", "-", "-", "1"] and "neither an interval nor p" in table.notes[0]
    two = tables.difference_tables(load(study), "near", [ACCURACY, metric_of("effective_rank")])
    assert [of.title for of in two] == ["Accuracy: differences from near", "Effective rank: differences from near"]


def test_differences_are_those_of_equal_seeds_on_equal_partitions(tmp_path):
    """By the hashes of the last start or, without them, by the examples of each class."""
    folder = write_cells(tmp_path / "s", ())
    found = comparison(load(folder), DECORR, "base")
    assert found[:3] == pytest.approx((0.105, np.std([0.1, 0.11], ddof=1), 2))
    np.savez(folder / ARMS[1] / "seed1" / "partition.npz", class_counts=np.full((3, 2), 9))
    found = comparison(load(folder), DECORR, "base")
    assert found.mean == pytest.approx(0.1) and found.n == 1 and math.isnan(found.std)
    hashes = {arm: {"seed0": {"partition": arm}, "seed1": {"partition": "same"}} for arm in ARMS}
    (folder / "provenance.json").write_text(json.dumps({"starts": [{"sha256": hashes}]}))
    by_hash = comparison(load(folder), DECORR, "base")
    assert by_hash.mean == pytest.approx(0.11) and by_hash.n == 1
    rewrite(folder, f"{ARMS[1]}/seed1/metrics.jsonl", lambda row, i, _: None if i else row)
    assert comparison(load(folder), DECORR, "base").n == 0  # not at the same round yet


def test_why_there_is_no_difference(tmp_path):
    study = load(folder := write_cells(tmp_path / "s", ()))
    for kept, words in (
        ((ARMS[1], 0), "no run of base is finished"),
        (("base", 0), "no run is finished"),
        (("base", 0, ARMS[1], 1), "no seed in common"),
    ):
        runs = [run for run in study.runs if (run.arm, run.seed) in (kept[:2], kept[2:])]
        assert comparing.why_none(dataclasses.replace(study, runs=runs), DECORR, "base") == words
    for file in folder.glob(f"{ARMS[1]}/*/partition.npz"):
        np.savez(file, class_counts=np.full((3, 2), 9))
    (table,) = tables.difference_tables(load(folder))
    assert table.rows[1][1:] == ["-", "-", "-", "0"] and table.rows[2][4] == "2"
    assert table.notes[0].endswith(f"No difference to base: {ARMS[1]} (their partitions differ from those of base).")
    rewrite(folder, f"{ARMS[1]}/*/metrics.jsonl", lambda row, i, _: None if i else row)
    assert comparing.why_none(load(folder), DECORR, "base") == "no finite accuracy of one seed at the same round"


def marked(study, kind) -> set[str]:
    return {row[0] for row in tables.final_table(study).rows[1:] if isinstance(row[1], kind)}


def test_the_best_is_bold_and_what_may_be_as_good_is_underlined(tmp_path):
    """By the interval of paired differences, of accuracies of one kind; ties are all bold.

    A single seed is neither the best nor as good, and a metric without a direction has no best.
    """
    others = {"same": LIKE["near"][::-1], "own": [0.9] * 3, "once": [0.99]}
    whole = load(write_arms(tmp_path / "s", LIKE | others, {"own": "personal"}))
    table = tables.final_table(whole)
    assert marked(whole, Bold) == {"near", "same"} and marked(whole, Alike) == {"base"} and tables.BEST in table.notes
    assert not any(isinstance(text, (Bold, Alike)) for text in table.frame["Effective rank"])
    best = comparing.best_of(whole.select([*LIKE]), ACCURACY._replace(better="lower"))
    assert {cell.arm: kind for cell, kind in best.items()} == {"far": Bold}
    some = whole.select(["far", "base"])  # the best of those that are shown
    assert marked(some, Bold) == {"base"} and marked(some, Alike) == set()
    single = load(write_arms(tmp_path / "t", {"a": [0.5], "b": [0.6]}))
    assert not marked(single, (Bold, Alike)) and tables.BEST not in tables.final_table(single).notes


SHIFTED = LIKE | {"top": [0.70, 0.81, 0.89], "some": [0.53, 0.64, 0.72]}  # base plus 20 ± 1 and 3 ± 1 points


def test_an_arm_is_recommended_only_if_its_corrected_interval_is_on_the_better_side(tmp_path):
    """The interval of ``some`` excludes 0, but not after the correction for four arms; ``far`` is on the other side."""
    study = load(write_arms(tmp_path / "s", SHIFTED))
    low, high = stats.t.interval(1 - 0.05 / 4, 2, loc=20, scale=1 / math.sqrt(3))
    how = "(3 paired seeds; 95 % intervals with Bonferroni's correction)"
    top = f"top +20.00 points (+{low:.2f} to +{high:.2f})"
    assert recommendations(study) == [f"Found better than base in accuracy: 1 of 4 arms {how}: {top}."]
    assert recommendations(study, "top") == [f"Found better than top in accuracy: none of 4 arms {how}."]
    (of_some,) = recommendations(study.select(["base", "some"]))
    assert ": 1 of 1 arm (" in of_some and ": some +3.00 points (+0.52 to +5.48)." in of_some
    assert not recommendations(study, columns=[R]) and recommendations(study, columns=[R, ACCURACY])
    for arm, values in LIKE.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / "loss" / arm / f"seed{seed}", [dict(squared_error=value)] * 2)
    (of_loss,) = recommendations(load(configure(tmp_path / "loss", rounds=2, arms={arm: {} for arm in LIKE})))
    assert "in squared error: 1 of 2 arms" in of_loss and of_loss.count("far −0.1 (−0.1") == 1


def test_nothing_is_recommended_without_three_pairs_after_divergence_or_by_rounding(tmp_path):
    study = write_arms(tmp_path / "s", SHIFTED)
    assert not recommendations(load(unfinish(study, "base/seed1")))
    values = {"base": [0.3] * 4, "dead": [0.5, 0.5, 0.5, None], "same": [0.1 + 0.2] * 4}
    (found,) = recommendations(load(write_arms(tmp_path / "t", values, seeds=[0, 1, 2, 3])))
    assert ": none of 2 arms (3 to 4 paired seeds; " in found


@pytest.mark.usefixtures("unrendered")
def test_recommendations_are_printed_and_in_the_report_and_in_tables_of_papers(tmp_path, capsys):
    folder = write_arms(tmp_path, SHIFTED, setting="a", settings={"a": {}})
    (text,) = recommendations(load(folder))
    assert report.main([str(folder)]) == 0 and capsys.readouterr().out.count(text) == 1 and text.startswith("a: Found ")
    assert text.removeprefix("a: ") in html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    assert report.main([str(folder), "--format=md", "--base=top"]) == 0
    assert "Found better than top in accuracy: none of 4 arms" in (folder / "export" / "results.md").read_text()


def test_rounds_to_the_best_accuracy_of_an_arm(tmp_path):
    """By hand: of every seed the first round that has it, of those that have."""
    folder = write_cells(tmp_path / "s", ("a",), paper={})
    accuracies = {
        ("base", 0): [0.2, 0.5, 0.4], ("base", 1): [0.3, 0.3, 0.6],
        (ARMS[1], 0): [0.5, 0.1, 0.1], (ARMS[1], 1): [0.1, 0.6, 0.1],
        (ARMS[2], 0): [0.4, 0.4, 0.4], (ARMS[2], 1): [None, 0.7, 0.9],
    }  # fmt: skip
    for (arm, seed), values in accuracies.items():
        rows = [dict(round=2 * i, accuracy=value) for i, value in enumerate(values, 1)]
        write_run(folder / "a" / arm / f"seed{seed}", rows)
    study = load(folder)
    reached = tables.rounds_to_target(study, CellName("a", ARMS[1]), "base")
    assert reached.rounds == (3, pytest.approx(2**0.5), 2) and reached.speedup == 2
    assert tables.target_table(study, "base").rows[1:] == [
        ["base", "6 ± 0 (2 of 2)", "1.00x"],
        [ARMS[1], "3 ± 1.4 (2 of 2)", "2.00x"],
        [ARMS[2], "4 (1 of 2)", "1.50x"],
    ]
    write_run(folder / "a" / ARMS[2] / "seed0", [{"round": 6, "accuracy": 0.95}])
    assert tables.target_table(load(folder), ARMS[2]).rows[1][1:] == ["not reached", "-"]


def test_dead_networks_are_named(tmp_path):
    accuracies = {"fine": [0.5, 0.6, 0.7], "dead": [0.1, 0.1135, 0.7], "gone": [None, 0.5, 0.5], "own": [0.1] * 3}
    study = load(write_arms(tmp_path / "s", accuracies, {"own": "personal"}))
    notes = dead_notes(study)
    assert notes == [
        "Dead networks, at chance (10 %), which pulls means: dead (2 of 3 seeds).",
        "Dead networks, diverged, which means leave out: gone (1 of 3 seeds).",
    ]
    assert study.moments(CellName("", "gone"), "accuracy")[2] == 2 and dead_notes(study.select(["fine"])) == []
    assert is_at_chance(0.55, 2) and not is_at_chance(0.56, 2) and is_at_chance(0.0119, 100)
    assert not is_at_chance(0.0121, 100) and not is_at_chance(0.13, 10) and not is_at_chance(1.0, 1)
    assert all(note in render(study)["report.html"] for note in notes)


def test_the_score_of_a_task_without_accuracy_is_the_headline(tmp_path):
    """It is a column in place of accuracies, or beside those of other arms."""
    write_run(tmp_path / "fedavg" / "seed0", [{"recall_at_5": score, "effective_rank": 3.0} for score in (0.1, 0.5)])
    study = load(configure(tmp_path, rounds=2, seeds=[0], arms={"fedavg": {}, "other": {}}))
    heading, row, _ = tables.final_table(study).rows
    assert heading == ["Arm", "Recall at 5 (%)", "Effective rank", "Seeds"] and row == ["fedavg", "50.00", "3.0", "1"]
    of_server = f"Recall at 5: of the {HEADLINES['server']} after the last round."
    assert tables.accuracy_note(study) == of_server
    write_run(tmp_path / "other" / "seed0", [{"accuracy": 0.25}])
    frame = tables.final_table(load(tmp_path)).frame
    assert [*frame["Accuracy (%)"], *frame["Recall at 5 (%)"]] == ["-", "25.00", "50.00", "-"]


def test_a_folder_without_runs_says_where_they_should_be(tmp_path):
    configure(tmp_path, settings={"a": {}}, arms={"b": {}})
    check(r"<setting>/<arm>/seed<k>/metrics\.jsonl", load, tmp_path)
