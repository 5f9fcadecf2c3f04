"""Tables and figures of studies as files, and what a study of cells looks like in its report. Nothing is trained."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import report
from experiments.arms import check_study
from experiments.cells import arms_of, means_of
from experiments.configs import quickstart
from experiments.paper import paper_of
from experiments.reporting import data, read_study, write_report
from experiments.reporting.export import as_rows, pivots, results_of
from experiments.reporting.paired import paired_difference
from experiments.reporting.published import summary_for_paper
from experiments.reporting.seconds import seconds_per_round
from experiments.reporting.sweep import lines_of, sweep
from experiments.reporting.table import paper_note, pivot_table, table_with_paper
from experiments.reporting.targets import rounds_to_target, target_table
from fedjax_collapse import UserError

ARMS = ("base", "decorr strength=0.1", "decorr strength=1")
PAPER = dict(source="X & Y, Table_1", comparable=False, why="small data", values={"a 1": {"base": 50.5}, "b": {}})


def make_cells(path: Path, settings=("a 1", "b"), paper=PAPER) -> Path:
    """Two settings, of which the first lacks a run; accuracies are 0.5, 0.6, 0.7 by arm, plus 0.01 by seed."""
    config = dict(rounds=2, seeds=[0, 1], settings={s: {} for s in settings}, paper=paper, data=dict(source="digits"))
    config["arms"] = dict(base={}, decorr=dict(training=dict(strength=0)))
    config["sweep"] = {"training.strength": [0.1, 1]}
    config["means"] = {"both": list(settings)} if settings else {}
    for setting in settings or [""]:
        for i, arm in enumerate(ARMS):
            for seed in (0, 1) if (setting, i) != ("a 1", 2) else (1,):
                run = path / setting / arm / f"seed{seed}"
                run.mkdir(parents=True)
                rows = [dict(round=r, accuracy=0.1 * (i + 3 + r) + 0.01 * seed * (i + 1), R=-1.0 * i) for r in (1, 2)]
                (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                np.savez(run / "partition.npz", class_counts=np.full((3, 2), 4 + seed))
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    return make_cells(tmp_path_factory.mktemp("studies") / "cells")


def test_arms_by_settings(cells):
    study = read_study(cells)
    assert study.settings == ("a 1", "b") and study.arms == ARMS
    assert list(study.summary) == [f"{setting}/{arm}" for setting in ("a 1", "b") for arm in ARMS]
    rows = pivot_table(study.summary)
    assert rows[0] == ["Arm", "a 1", "b"] and rows[1] == ["base", "50.50 ± 0.71 (2)", "50.50 ± 0.71 (2)"]
    assert rows[3] == ["decorr strength=1", "73.00 (1)", "71.50 ± 2.12 (2)"]
    assert pivot_table(study.summary, "R")[2][1:] == ["-1.000 ± 0.000 (2)"] * 2


def test_the_papers_numbers_stand_apart_unless_they_are_comparable(cells):
    study = read_study(cells)
    paper = paper_of(study.config)
    rows = table_with_paper(study.summary, paper)
    assert rows[2] == ["base (paper, not comparable)", "50.50", ""] and len(rows) == 5
    assert paper_note(paper) == "X & Y, Table_1; not comparable: small data."
    rows = table_with_paper(study.summary, paper._replace(comparable=True))
    assert rows[1] == ["base", "50.50 ± 0.71 (2) | paper 50.50", "50.50 ± 0.71 (2)"] and len(rows) == 4


def test_the_papers_numbers_may_be_of_a_measurement(cells):
    """In its own unit, not in percent; cells that have not recorded it are empty; tables have accuracy, too."""
    study, metric = read_study(cells), "measured/ranks/nesum"
    of_paper = dict(study.config["paper"], metric=metric, values={"b": {"base": 1201}})
    summary = dict(study.summary) | {"b/base": {**study.summary["b/base"], metric: {"mean": 2.5, "std": 0.5, "n": 2}}}
    paper = paper_of(study.config | {"paper": of_paper})
    rows = table_with_paper(summary, paper)
    assert rows[1:3] == [["base", "-", "2.5 ± 0.5 (2)"], ["base (paper, not comparable)", "", "1201"]]
    assert paper_note(paper) == "X & Y, Table_1 (ranks/nesum); not comparable: small data."
    assert table_with_paper(study.summary, paper)[1] == ["base", "-", "-"]
    other = dataclasses.replace(study, config=study.config | {"paper": of_paper}, saved_summary=summary)
    (_, ours, note), (name, accuracies, _) = pivots({"x": other})
    assert [row[:3] for row in ours] == rows and note.startswith("Paper: X") and name == "x: accuracy"
    assert accuracies == pivot_table(study.summary, "accuracy", means_of(study.config))


def test_the_papers_numbers_may_be_of_what_runs_give_together(tmp_path):
    """Rounds to the best accuracy of an arm, and seconds, by hand; unknown ones stay empty. Accuracies have theirs."""
    of_paper = PAPER | dict(metric="rounds_to_target", target="base", values={"b": {ARMS[1]: 12.0}})
    folder = make_cells(tmp_path / "s", paper=of_paper)
    first = summary_for_paper(read_study(folder))[f"b/{ARMS[1]}"]["rounds_to_target"]
    assert first == {"mean": 1.0, "std": 0.0, "n": 2}  # base: 0.4, 0.5; this arm: 0.5, 0.6
    (_, rows, note), (name, accuracies, _), (title, by_arm, _) = as_pivots(folder)
    assert rows[1][:3] == ["base", "2 ± 0 (2)", "2 ± 0 (2)"]
    assert rows[2:4] == [[ARMS[1], *["1 ± 0 (2)"] * 2, "1"], [f"{ARMS[1]} (paper, not comparable)", "", "12", ""]]
    assert "(rounds to the best accuracy of base with the same seed; its own are all its rounds)" in note
    assert name == "s: accuracy" and accuracies[1][1] == "50.50 ± 0.71 (2)"
    assert title == "s: rounds to base" and by_arm[2][:3] == [ARMS[1], "1 ± 0 (2 of 2)", "2.00x"]
    page = write_report(folder).read_text(encoding="utf-8")
    assert "Rounds to the target of all cells" in page and '<span class="below">12</span>' in page

    config = read_study(folder).config
    (folder / "config.json").write_text(json.dumps(config | {"paper": of_paper | {"target": "decorr strength=2"}}))
    assert as_pivots(folder)[0][1][1] == ["base", "-", "-", "-"]  # that arm has no runs yet

    of_paper = PAPER | dict(metric="seconds_per_round", values={"b": {"base": 26.0}})
    (folder / "config.json").write_text(json.dumps(config | {"paper": of_paper}))
    for seed, seconds in enumerate((3.0, 5.0)):
        times = [(1, 9.0, 2.0), (2, 8.0, 0.0), (4, 2 * seconds, 0.0), (5, seconds + 1, 0.0), (6, seconds - 1, 0.0)]
        lines = [json.dumps(dict(round=r, train=train, compile=c)) for r, train, c in times]
        (folder / "b" / "base" / f"seed{seed}" / "timing.jsonl").write_text("\n".join(lines) + "\n")
    assert seconds_per_round(read_study(folder))["a 1/base"] == {"mean": None, "std": None, "n": 0}
    (_, rows, note), *_ = as_pivots(folder)  # medians 3.5 of 8, 3, 4, 2, and 5.5 of 8, 5, 6, 4
    assert rows[1:3] == [["base", "-", "4.5 ± 1.414 (2)", "-"], ["base (paper, not comparable)", "", "26", ""]]
    assert note == "Paper: X & Y, Table_1 (seconds per round); not comparable: small data."


def as_pivots(folder):
    studies = {"s": read_study(folder)}
    return pivots(studies) + results_of(studies).targets


def test_the_page_has_the_pivot_the_settings_and_the_sweep(cells):
    page = write_report(cells).read_text(encoding="utf-8")
    assert '<span class="below">50.50</span>' in page and "not comparable: small data." in page
    assert '<th scope="col">both</th>' in page
    assert page.count('<details class="section"><summary>Setting') == 2 and "Accuracy (%) of all cells" in page
    assert "a 1: decorr strength=1: results of 1 of 2 seeds." in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids)) and {"setting0-sweep", "setting1-sweep", "all-accuracy"} <= set(ids)


def test_without_settings_a_papers_numbers_are_by_arm(tmp_path):
    paper = dict(source="X", comparable=True, values={"base": 60.0})
    page = write_report(make_cells(tmp_path / "s", (), paper)).read_text(encoding="utf-8")
    assert '<span class="beside">60.00</span>' in page and "<summary>Setting" not in page


def test_differences_are_those_of_equal_seeds_on_equal_partitions(tmp_path):
    folder = make_cells(tmp_path / "s", ())
    expected = {"mean": pytest.approx(0.105), "std": pytest.approx(np.std([0.1, 0.11], ddof=1)), "n": 2}
    assert paired_difference(read_study(folder), ARMS[1], "base") == expected
    np.savez(folder / ARMS[1] / "seed1" / "partition.npz", class_counts=np.full((3, 2), 9))
    assert paired_difference(read_study(folder), ARMS[1], "base") == {"mean": pytest.approx(0.1), "std": None, "n": 1}
    hashes = {arm: {"seed0": {"partition": arm}, "seed1": {"partition": "same"}} for arm in ARMS}
    (folder / "provenance.json").write_text(json.dumps({"starts": [{"sha256": hashes}]}))
    by_hash = paired_difference(read_study(folder), ARMS[1], "base")
    assert by_hash == {"mean": pytest.approx(0.11), "std": None, "n": 1}
    rows = (folder / ARMS[1] / "seed1" / "metrics.jsonl").read_text().splitlines()[:1]
    (folder / ARMS[1] / "seed1" / "metrics.jsonl").write_text(rows[0] + "\n")  # not at the same round yet
    assert paired_difference(read_study(folder), ARMS[1], "base")["n"] == 0


def test_files_of_one_study(cells, tmp_path, capsys):
    before = {path: path.read_bytes() for path in cells.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert report.main([str(cells), f"--out={out}", "--format=md,tex,csv,svg", "--base=base"]) == 0
    assert before == {path: path.read_bytes() for path in cells.rglob("*") if path.is_file()}
    markdown = (out / "results.md").read_text()
    assert "| Setting | Arm | Accuracy (%) | Best | Last 10 |" in markdown and "| --- | --- | ---: |" in markdown
    assert "| b | decorr strength=1 | 71.50 ± 2.12 | 71.50 ± 2.12 | - |" in markdown
    assert "+10.50 ± 0.71 (2)" in markdown and markdown.endswith("not comparable: small data.\n")
    latex = (out / "results.tex").read_text()
    assert "\\begin{tabular}{llrrrrrrrr}" in latex and "71.50 $\\pm$ 2.12" in latex and "X \\& Y, Table\\_1" in latex
    assert latex.count("\\\\\n") == 1 + 6 + 1 + 4  # heading and cells; heading, arms and the paper's row
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [(row["Setting"], row["Arm"]) for row in rows] == [(s, arm) for s in ("a 1", "b") for arm in ARMS]
    assert float(rows[4]["Accuracy (%): mean"]) == pytest.approx(61) and rows[2]["Accuracy (%): std"] == ""
    assert float(rows[5]["Accuracy - base: mean"]) == pytest.approx(21) and rows[5]["Accuracy - base: n"] == "2"
    figures = {str(path.relative_to(out)) for path in out.rglob("*.svg")}
    assert {"accuracy.svg", "a 1/accuracy.svg", "b/sweep.svg", "b/partition.svg"} <= figures
    assert "results.csv" in capsys.readouterr().out


def test_means_over_settings(cells):
    """Of arms that all of the settings have; the paper may have them, too."""
    study = read_study(cells)
    means = {"both": ("a 1", "b"), "one": ("b",)}
    rows = pivot_table(study.summary, "accuracy", means)
    assert rows[0] == ["Arm", "a 1", "b", "both", "one"] and rows[1][3:] == ["50.50", "50.50"]
    assert rows[3][1:] == ["73.00 (1)", "71.50 ± 2.12 (2)", "72.25", "71.50"]
    missing = {cell: metrics for cell, metrics in study.summary.items() if cell != "b/base"}
    assert pivot_table(missing, "accuracy", means)[1] == ["base", "50.50 ± 0.71 (2)", "-", "-", "-"]
    paper = paper_of(study.config)._replace(values={"both": {"base": 40.0}})
    assert table_with_paper(study.summary, paper, means)[2] == ["base (paper, not comparable)", "", "", "40.00", ""]


@pytest.mark.parametrize(
    ("means", "words"),
    [
        (dict(m=("a", "c")), "unknown setting in means.m 'c'"),
        (dict(a=("b",)), "means.a: expected at least one setting, and a name that no setting has"),
        (dict(m=()), "means.m: expected at least one setting"),
        (dict(m="a"), "means.m"),
    ],
)
def test_means_that_make_no_sense(means, words):
    config = quickstart.get_config("smoke")
    config.settings, config.means = dict(a={}, b={}), means
    with pytest.raises(UserError, match=words):
        check_study(config)


def test_rounds_to_the_best_accuracy_of_an_arm(tmp_path, capsys):
    """By hand: of every seed the first round that has it, of those that have."""
    folder = make_cells(tmp_path / "s", ("a",), {})
    accuracies = {
        ("base", 0): [0.2, 0.5, 0.4], ("base", 1): [0.3, 0.3, 0.6],
        (ARMS[1], 0): [0.5, 0.1, 0.1], (ARMS[1], 1): [0.1, 0.6, 0.1],
        (ARMS[2], 0): [0.4, 0.4, 0.4], (ARMS[2], 1): [None, 0.7, 0.9],
    }  # fmt: skip
    for (arm, seed), values in accuracies.items():
        rows = [dict(round=2 * (i + 1), accuracy=value) for i, value in enumerate(values)]
        (folder / "a" / arm / f"seed{seed}").mkdir(exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "a" / arm / f"seed{seed}" / "metrics.jsonl").write_text(text)
    study = read_study(folder)
    found = rounds_to_target(study, "base")
    assert found["a/base"].rounds["mean"] == 6 and found["a/base"].speedup == 1
    assert found[f"a/{ARMS[1]}"].rounds == {"mean": 3, "std": pytest.approx(2**0.5), "n": 2}
    assert found[f"a/{ARMS[1]}"].speedup == 2
    assert target_table(study, "base")[1:] == [
        ["base", "6 ± 0 (2 of 2)", "1.00x"],
        [ARMS[1], "3 ± 1.4 (2 of 2)", "2.00x"],
        [ARMS[2], "4 (1 of 2)", "1.50x"],
    ]
    assert report.main([str(folder), "--target=base", "--format=md,tex"]) == 0
    assert "3 ± 1.4 (2 of 2)" in capsys.readouterr().out
    assert f"| {ARMS[1]} | 3 ± 1.4 (2 of 2) | 2.00x |" in (folder / "export" / "results.md").read_text()
    assert "(2 of 2) & 2.00x" in (folder / "export" / "results.tex").read_text()
    (folder / "a" / ARMS[2] / "seed0" / "metrics.jsonl").write_text('{"round": 6, "accuracy": 0.95}\n')
    assert target_table(read_study(folder), ARMS[2])[1][1:] == ["not reached", "-"]
    assert report.main([str(folder), "--target=bas"]) == 2
    assert "unknown arm in --target 'bas': did you mean 'base'" in capsys.readouterr().err


def test_several_studies_in_one_table(cells, tmp_path, capsys):
    other = make_cells(tmp_path / "other", (), {})
    assert report.main([str(cells), str(other), f"--out={tmp_path / 'out'}", "--format=csv"]) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert [(row["Study"], row["Setting"]) for row in rows[::3]] == [("cells", "a 1"), ("cells", "b"), ("other", "")]
    heading, *rows = as_rows(results_of({"x": read_study(other)}, "base"))
    assert heading[0] == "Arm" and heading[-2:] == ["Accuracy - base", "Seeds"] and rows[0][-2] == "-"
    for arguments, words in (
        ([str(cells), str(other), "--base=base"], "say by --out=FOLDER"),
        ([str(cells), "--base=bas"], "unknown arm in --base 'bas': did you mean 'base'"),
        ([str(cells), "--format=doc"], "unknown format 'doc'"),
        ([str(tmp_path), "--format=md"], "config.json: no such file"),
        ([str(cells), "--format=md", "--out=/dev/null/x"], "cannot be written"),
    ):
        assert report.main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_a_sweep_is_drawn_against_its_values(tmp_path):
    study = read_study(make_cells(tmp_path / "s", ()))
    (line,) = lines_of(arms_of(study.config), "strength")
    assert line.name == "decorr" and line.values == (0.1, 1) and line.arms == ARMS[1:]
    figure = sweep(study)
    accuracy, _, collapse = figure.axes
    points = accuracy.containers[0].lines[0]
    assert points.get_xdata() == pytest.approx([0.1, 1]) and points.get_ydata() == pytest.approx([61, 71.5])
    assert accuracy.get_xscale() == "log" and accuracy.lines[-1].get_ydata() == pytest.approx([50.5] * 2)  # the base
    assert collapse.containers[0].lines[0].get_ydata() == pytest.approx([-1, -2])
    assert all(axes.get_xlim() == pytest.approx((10**-1.05, 10**0.05)) for axes in figure.axes)
    study.config["sweep"].clear()
    assert sweep(study) is None


@pytest.mark.filterwarnings("error")
def test_a_sweep_is_drawn_where_one_of_its_values_is_measured(tmp_path):
    folder = make_cells(tmp_path / "s", ())
    for file in folder.glob(f"{ARMS[2]}/*/metrics.jsonl"):
        file.unlink()
    figure = sweep(read_study(folder))
    assert all(axes.get_xlim() == pytest.approx((0, 0.2)) for axes in figure.axes)


def test_numbers_of_a_sweep_are_those_that_are_drawn(tmp_path):
    """R of several watched clients is their mean."""
    folder = make_cells(tmp_path, settings=())
    for file in folder.glob("*/seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [row | {"R_mean": 7.0, "R_min": 6.0, "R_max": 8.0} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    heading, *rows = data.sweep(read_study(folder))
    assert heading[-2] == "R_mean: mean" and [row[-2] for row in rows] == [7, 7, 7]


def test_lines_of_a_sweep_over_two_axes():
    config = dict(arms=dict(m=dict(a=0, b="x"), n={}), sweep=dict(a=[1, 2], b=["x", "y"]))
    lines = lines_of(arms_of(config), "a")
    assert [(line.name, line.values) for line in lines] == [("m b=x", (1, 2)), ("m b=y", (1, 2))]
    config = dict(arms=dict(m=dict(a=0)), sweep=dict(a=[[1, 2], [3]]))
    assert lines_of(arms_of(config), "a")[0].values == ((1, 2), (3,))


def test_a_folder_without_runs_says_where_they_should_be(tmp_path):
    (tmp_path / "config.json").write_text('{"settings": {"a": {}}, "arms": {"b": {}}}')
    with pytest.raises(UserError, match=r"<setting>/<arm>/seed<k>/metrics\.jsonl"):
        read_study(tmp_path)
