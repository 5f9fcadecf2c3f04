"""What tables show and how: columns and order, significance, bold, minus signs, dead networks, colours of arms."""

import csv
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from test_report import rewrite_rows

from experiments.commands import report
from experiments.results.formats import Bold
from experiments.results.metrics import ACCURACY, metric_of, show_number
from experiments.results.page import render
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.plotting.drawing import COLOURS
from experiments.results.plotting.figures import accuracy
from experiments.results.reading import read_study
from experiments.results.study_results import summarize_run, summarize_seeds
from experiments.results.tables.best import best_note, with_best
from experiments.results.tables.dead import dead_notes, is_at_chance
from experiments.results.tables.differences import compared_metrics, difference_tables
from experiments.results.tables.significance import compare, smallest_p
from experiments.results.tables.table import accuracy_note, final_table
from experiments.results.tables.view import EVERYTHING, View, view_of
from experiments.study.progress.console import Console
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.core.records import UserError
from fedjax_collapse.run.measurement import HEADLINES

SWEEP = {"methods.decorr.strength": [1.0, 0.1, 10.0]}  # not in their order


def make(path: Path, accuracies: dict[str, list], config=None, headlines=None, setting="") -> Path:
    """A study of two rounds of ten classes with these final accuracies by arm and seed; R is the negative seed."""
    for arm, values in accuracies.items():
        for seed, value in enumerate(values):
            run = path / setting / arm / f"seed{seed}"
            run.mkdir(parents=True)
            rows = [dict(round=r, accuracy=value, effective_rank=20.0 - 2 * seed - len(arm), R=-seed) for r in (1, 2)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            headline = HEADLINES[(headlines or {}).get(arm, "server")]
            (run / "summary.json").write_text(json.dumps({"headline": headline}))
            np.savez(run / "partition.npz", class_counts=np.full((3, 10), 4))
    arms = config or {"arms": {arm: {} for arm in accuracies}}
    (path / "config.json").write_text(json.dumps({"rounds": 2, "seeds": [0, 1, 2]} | arms))
    return path


LIKE = {"base": [0.50, 0.60, 0.70], "near": [0.52, 0.58, 0.71], "far": [0.40, 0.51, 0.59]}


@pytest.fixture
def study(tmp_path):
    return make(tmp_path / "study", LIKE)


def test_a_comparison_by_hand():
    found = compare([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found[:3] == (3.0, pytest.approx(math.sqrt(2.5)), 5)
    assert (found.low, found.high) == pytest.approx((3 - 2.776445 * math.sqrt(0.5), 3 + 2.776445 * math.sqrt(0.5)))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 4, loc=3, scale=math.sqrt(0.5)))
    assert found.p == smallest_p(5) == 0.0625 and not found.may_be_zero and compare([-1.0, 2.0]).may_be_zero


def test_a_comparison_of_too_few_or_equal_runs():
    """Rounding does not count as a difference."""
    one, none, equal = compare([0.5]), compare([]), compare([0.1 + 0.2 - 0.3] * 3)
    assert one.mean == 0.5 and one.n == 1 and not one.has_interval and not one.may_be_zero and math.isnan(one.p)
    assert none.n == 0 and math.isnan(none.mean)
    assert equal.p == 1 and compare([0.0, 0.0]).p == 1 and compare([0.0, 0.0]).may_be_zero


def test_the_table_of_differences(study):
    (table,) = difference_tables(read_study(study))
    assert table.title == "Accuracy: differences from base"
    assert table.rows[0] == ["Arm", "Difference (points)", "95 % interval", "p (Wilcoxon)", "Pairs"]
    interval = stats.t.interval(0.95, 2, loc=-10, scale=1 / math.sqrt(3))
    assert table.rows[2] == ["far", "−10.00 ± 1.00", f"−{-interval[0]:.2f} to −{-interval[1]:.2f}", "0.25", "3"]
    assert "With 3 pairs or fewer, p cannot be below 0.25." in table.note
    (study / "base" / "seed1" / "summary.json").unlink()  # unfinished
    (study / "base" / "seed2" / "summary.json").unlink()
    (table,) = difference_tables(read_study(study))
    assert table.rows[2] == ["far", "−10.00", "-", "-", "1"] and "neither an interval nor p" in table.note
    two = difference_tables(read_study(study), "near", View(columns=("accuracy", "effective_rank")))
    assert [of.title for of in two] == ["Accuracy: differences from near", "Effective rank: differences from near"]


def bold_arms(summary) -> set[str]:
    return {row[0] for row in final_table(summary)[1:] if isinstance(row[1], Bold)}


def test_bold_are_the_best_and_those_that_may_be_as_good(study):
    record = read_study(study)
    summary = with_best(record, record.summary)
    assert bold_arms(summary) == {"base", "near"} and best_note(summary) and not best_note(record.summary)
    ranks = [row[4] for row in final_table(summary)[1:]]
    assert not any(isinstance(rank, Bold) for rank in ranks)  # it has no direction
    shown = View(arms=("far", "near")).of(record.summary)
    assert bold_arms(with_best(record, shown)) == {"near"}


def test_only_accuracies_of_one_kind_and_of_several_seeds_are_bold(tmp_path):
    record = read_study(make(tmp_path / "s", LIKE | {"own": [0.9, 0.9, 0.9]}, headlines={"own": "personal"}))
    assert bold_arms(with_best(record, record.summary)) == {"base", "near"}
    record = read_study(make(tmp_path / "t", {"a": [0.5], "b": [0.6]}))
    assert bold_arms(with_best(record, record.summary)) == set()
    record = read_study(make(tmp_path / "u", LIKE | {"once": [0.99]}))  # one seed is not compared
    assert bold_arms(with_best(record, record.summary)) == {"base", "near"}


@pytest.mark.usefixtures("unrendered")
def test_bold_and_minus_signs_of_each_format(study, capsys, monkeypatch):
    assert report.main([str(study), "--format=md,tex,csv"]) == 0
    text = {kind: (study / "export" / f"results.{kind}").read_text() for kind in ("md", "tex", "csv")}
    assert "| **60.33 ± 9.71** |" in text["md"] and "| 50.00 ± 9.54 |" in text["md"] and "−1.000" in text["md"]
    assert "\\textbf{60.33 $\\pm$ 9.71}" in text["tex"] and "$-$1.000" in text["tex"] and "−" not in text["tex"]
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    assert rows[0]["R: mean"] == "-1" and "−" not in text["csv"] and "*" not in text["csv"]
    page = render(read_study(study))["report.html"]
    assert "<td><b>60.33 ± 9.71</b></td>" in page and "<td>−1.000 ± 1.000</td>" in page
    assert "Accuracy: differences from base" in page

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    record, stream = read_study(study), Terminal()
    Console(stream=stream).print_table(with_best(record, record.summary))
    shown = stream.getvalue()
    assert "\x1b[1m60.00 ± 10.00\x1b[0m" in shown and not re.search(r"\x1b\[1m *50\.00", shown)


def test_signs_of_numbers():
    assert show_number(-1.5, "+.2f") == "−1.50" and show_number(1e-9, ".1e") == "1.0e−09"
    assert ACCURACY.show(-0.5) == "−50.00" and ACCURACY.show(None) == "-"


@pytest.mark.usefixtures("unrendered")
def test_columns_and_arms_are_those_asked_for_in_every_format(study, capsys):
    chosen = ["--columns=R,accuracy", "--arms=far,base,near", "--sort=accuracy"]
    assert report.main([str(study), *chosen, "--format=md,tex,csv", "--target=far"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]] == ["near", "base", "far"]
    lines = (study / "export" / "results.md").read_text().splitlines()
    assert lines[0] == "| Arm | R | Accuracy (%) | Seeds |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| near", "| base", "| far"]
    assert "Arm & R & Accuracy (\\%) & Seeds" in (study / "export" / "results.tex").read_text()
    rows = list(csv.DictReader(io.StringIO((study / "export" / "results.csv").read_text())))
    assert [row["Arm"] for row in rows] == ["near", "base", "far"] and "Best: mean" not in rows[0]
    assert rows[1]["Accuracy (%) difference: from"] == "far"  # the first that is asked for
    assert report.main([str(study), *chosen]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["Arm", "R", "Accuracy", "(%)", "Seeds"] and shown[1].startswith("near")
    heads = re.findall(r'<th scope="col">(.*?)</th>', (study / "report.html").read_text(encoding="utf-8"))
    assert heads[:4] == ["Arm", "R", "Accuracy (%)", "Seeds"]
    for option in ("--columns=accuracy,rank", "--arms=bas", "--sort=best"):
        assert report.main([str(study), option]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"in {option.partition('=')[0]}" in error and "expected one of" in error


def test_arms_are_sorted_by_their_mean_over_settings(tmp_path):
    config = {"arms": {"a": {}, "b": {}}, "settings": {"s": {}, "t": {}}}
    make(tmp_path / "s", {"a": [0.5, 0.5], "b": [0.4, 0.4]}, config, setting="s")
    record = read_study(make(tmp_path / "s", {"a": [0.1, 0.1], "b": [0.4, 0.4]}, config, setting="t"))
    assert [*map(str, EVERYTHING.of(record.summary))] == ["s/a", "s/b", "t/a", "t/b"]
    assert [*map(str, view_of([record], sort="accuracy").of(record.summary))] == ["s/b", "s/a", "t/b", "t/a"]
    with pytest.raises(UserError, match="unknown arm in --arms 'c'"):
        view_of([record], arms="a,c")


def test_dead_networks_are_named(tmp_path):
    accuracies = {"fine": [0.5, 0.6, 0.7], "dead": [0.1, 0.1135, 0.7], "gone": [None, 0.5, 0.5], "own": [0.1] * 3}
    record = read_study(make(tmp_path / "s", accuracies, headlines={"own": "personal"}))
    (note,) = dead_notes(record)
    assert note == (
        "Dead networks: dead: 2 of 3 seeds at chance (10 %), which pulls the mean; "
        "gone: 1 of 3 seeds diverged, which the mean leaves out."
    )
    assert record.summary[CellName("", "gone")]["accuracy"]["n"] == 2
    assert dead_notes(read_study(make(tmp_path / "t", {"fine": [0.5]}))) == []
    assert is_at_chance(0.55, 2) and not is_at_chance(0.56, 2) and is_at_chance(0.0119, 100)
    assert not is_at_chance(0.0121, 100) and not is_at_chance(0.13, 10) and not is_at_chance(1.0, 1)
    assert note in render(record)["report.html"]


def test_dead_features_have_a_column_and_an_arm_that_kills_many_is_named(tmp_path):
    folder = make(tmp_path / "s", {"fedavg": [0.5, 0.6], "feddecorr": [0.5, 0.6]})
    headings = final_table(read_study(folder).summary)[0]
    assert not any("ead features" in heading for heading in headings)
    for arm, share in (("fedavg", 0.0), ("feddecorr", 0.1)):
        for seed in range(2):
            own = {"dead_features": share + seed * 0.1, "local_dead_features": 0.0}
            file = folder / arm / f"seed{seed}" / "metrics.jsonl"
            rewrite_rows(file, lambda rows, own=own: [row | own for row in rows])
    record = read_study(folder)
    heading, *rows = final_table(record.summary)
    assert [row[heading.index("Dead features (%)")] for row in rows] == ["5.0 ± 7.1", "15.0 ± 7.1"]
    assert "Local dead features (%)" not in heading
    (note,) = dead_notes(record)
    assert note == "Dead features, the same for all test examples: feddecorr 15.0 % (docs/dead_features.md)."
    assert note in render(record)["report.html"]


def test_arms_of_a_sweep_have_colours_along_a_scale(tmp_path):
    """In the order of their values; all others keep categorical ones, in figures, legends and tables."""
    arms = {"base": {}, "decorr": {"methods": {"decorr": {"strength": 0}}}, "other": {}}
    names = ["base", *(f"decorr strength={value}" for value in SWEEP["methods.decorr.strength"]), "other"]
    accuracies = {name: [0.5, 0.6 + i / 100] for i, name in enumerate(names)}
    record = read_study(make(tmp_path / "s", accuracies, {"arms": arms, "sweep": SWEEP}))
    colours = colours_of(record)
    ordered = ["base", *(f"decorr strength={value}" for value in (0.1, 1.0, 10.0)), "other"]
    assert list(colours) == ordered and (colours["base"], colours["other"]) == COLOURS[:2]
    levels = [sum(int(colours[arm][i : i + 2], 16) for i in (1, 3, 5)) for arm in ordered[1:4]]
    assert levels == sorted(set(levels)) and not set(COLOURS) & {colours[arm] for arm in ordered[1:4]}
    figure = accuracy(record)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ordered
    assert {line.get_color() for line in figure.axes[0].lines} == set(colours.values())
    assert f'style="background:{colours[ordered[2]]}"' in render(record)["report.html"]
    (tmp_path / "s" / ordered[1] / "seed0" / "metrics.jsonl").unlink()
    (tmp_path / "s" / ordered[1] / "seed1" / "metrics.jsonl").unlink()
    assert colours_of(read_study(tmp_path / "s"))[ordered[2]] == colours[ordered[2]]  # also while an arm is missing


@pytest.mark.parametrize(
    "sweep", [{"m.a": ["x", "y"]}, {"m.a": [1, 2], "m.b": [1, 2]}, {"m.a": [[1], [2]]}, {"m.a": [True, False]}]
)
def test_other_sweeps_have_categorical_colours(tmp_path, sweep):
    config = {"arms": {"m": {"m": {"a": 0, "b": 0}}}, "sweep": sweep}
    axes = [[f"{key[-1]}={'x'.join(map(str, v)) if isinstance(v, list) else v}" for v in sweep[key]] for key in sweep]
    names = ["m"]
    for values in axes:
        names = [f"{name} {value}" for name in names for value in values]
    record = read_study(make(tmp_path / "s", {name: [0.5] for name in names}, config))
    assert list(colours_of(record).values()) == list(COLOURS[: len(names)])


def test_the_score_of_a_task_without_accuracy_is_the_headline():
    """It is a column in place of accuracies, or beside those of other studies."""

    def of(name, value):
        run = summarize_run([{"round": 1, name: 0.1}, {"round": 2, name: value, "effective_rank": 3.0}])
        return summarize_seeds([run | {"headline": "server model", "local": ""}])

    summary = {CellName("", "fedavg"): of("recall_at_5", 0.5)}
    assert final_table(summary) == [
        ["Arm", "Recall at 5 (%)", "Effective rank", "Significant dimensions", "R", "Seeds"],
        ["fedavg", "50.00", "3.0", "-", "-", "1"],
    ]
    assert accuracy_note(summary) == "Recall at 5: the headline, of the server model after the last round."
    assert compared_metrics(View(), summary) == (metric_of("recall_at_5"),)
    mixed = final_table(summary | {CellName("", "other"): of("accuracy", 0.25)})
    assert mixed[0][:5] == ["Arm", "Accuracy (%)", "Best", "Last 10", "Recall at 5 (%)"]
    assert [row[1:5] for row in mixed[1:]] == [["-", "-", "-", "50.00"], ["25.00", "25.00", "-", "-"]]
