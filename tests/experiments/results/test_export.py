"""Tables and figures of studies as files, and what a study of cells looks like in its report. Nothing is trained."""

import csv
import dataclasses
import io
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.commands import report
from experiments.configs import quickstart
from experiments.results import page as html
from experiments.results.export import TABLES, results_of
from experiments.results.formats import in_latex, in_markdown
from experiments.results.metrics import ACCURACY, SECONDS, R
from experiments.results.page import write_report
from experiments.results.paper import paper_of
from experiments.results.plotting.sweep import lines_of, sweep
from experiments.results.reading import read_study
from experiments.results.tables.differences import comparison
from experiments.results.tables.paired import why_none
from experiments.results.tables.pivots import paper_note, pivot, pivots, summary_for_paper
from experiments.results.tables.seconds import seconds_per_round
from experiments.results.tables.targets import rounds_to_target, target_note, target_table
from fedjax_collapse import UserError
from fedjax_collapse.config.cells import CellName, arms_of, means_of
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_study
from fedjax_collapse.run.measurement import HEADLINES

DIFFERENCE = "Accuracy (%) difference: "  # columns of results.csv
ARMS = ("base", "decorr strength=0.1", "decorr strength=1")
PAPER = dict(source="X & Y, Table_1", comparable=False, why="small data", values={"a 1": {"base": 50.5}, "b": {}})


def make_cells(path: Path, settings=("a 1", "b"), paper=None) -> Path:
    """Two settings, of which the first lacks a run; accuracies are 0.5, 0.6, 0.7 by arm, plus 0.01 by seed."""
    paper = (PAPER if settings else {}) if paper is None else paper
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
                (run / "summary.json").write_text(json.dumps({"headline": HEADLINES["server"]}))
                np.savez(run / "partition.npz", class_counts=np.full((3, 2), 4 + seed))
    (path / "config.json").write_text(json.dumps(config))
    return path


def read_csv(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    return make_cells(tmp_path_factory.mktemp("studies") / "cells")


def test_arms_by_settings(cells):
    study = read_study(cells)
    assert study.settings == ("a 1", "b") and study.arms == ARMS
    assert list(map(str, study.summary)) == [f"{setting}/{arm}" for setting in ("a 1", "b") for arm in ARMS]
    rows = pivot(study.summary).ours
    assert rows[0] == ["Arm", "a 1", "b"] and rows[1] == ["base", "50.50 ± 0.71 (2)", "50.50 ± 0.71 (2)"]
    assert rows[3] == ["decorr strength=1", "73.00 (1)", "71.50 ± 2.12 (2)"]
    assert pivot(study.summary, R).ours[2][1:] == ["−1.000 ± 0.000 (2)"] * 2


def test_the_papers_numbers_stand_apart_unless_they_are_comparable(cells):
    study = read_study(cells)
    paper = paper_of(study.config)
    rows = pivot(study.summary, ACCURACY, paper).as_rows()
    assert rows[2] == ["base (paper, not comparable)", "50.50", ""] and len(rows) == 5
    assert paper_note(paper) == "X & Y, Table_1; not comparable: small data."
    rows = pivot(study.summary, ACCURACY, paper._replace(comparable=True)).as_rows()
    assert rows[1] == ["base", "50.50 ± 0.71 (2) ≈ paper 50.50", "50.50 ± 0.71 (2)"] and len(rows) == 4
    rows = pivot(study.summary, ACCURACY, paper._replace(spreads={"a 1": {"base": 0.2}})).as_rows()
    assert rows[2] == ["base (paper, not comparable)", "50.50 ± 0.20", ""]


def compared(path: Path) -> Path:
    """A study with a comparable paper: intervals that touch and that do not, without spread, of one seed; a domain."""
    values = {"a 1": {"base": 52.0, ARMS[1]: 62.21, ARMS[2]: 73.0}, "b": {"base": 49.7, ARMS[1]: 59.0}}
    spreads = {"a 1": {"base": 0.79, ARMS[1]: 0.29, ARMS[2]: 0.5}}  # ours: 50.50 ± 0.71, 61.00 ± 1.41, 73.00 of one
    columns = {"red": ("b", "measured/domains/red")}
    paper = dict(source="X", comparable=True, values=values | {"red": {"base": 24.0}}, spreads=spreads, columns=columns)
    folder = make_cells(path, paper=paper | dict(spreads=spreads | {"red": {"base": 1.5}}))
    for seed, red in enumerate((0.2, 0.22)):  # 21.00 ± 1.41
        file = folder / "b" / "base" / f"seed{seed}" / "metrics.jsonl"
        rows = [json.loads(line) | {"measured/domains/red": red} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


AGREEMENT = (
    "≈: the intervals mean ± standard deviation overlap, in 2 of 3 cells; ≠: not in base at red. "
    "Without a spread of the paper, ≈: its mean is in our interval mean ± standard deviation, in 0 of 2 cells; "
    f"≠: not in base at b, {ARMS[1]} at b. One seed has no interval to compare in {ARMS[2]} at a 1."
)


@pytest.mark.usefixtures("unrendered")
def test_whether_intervals_overlap_with_the_papers(tmp_path, capsys):
    """At the digits that are shown; in the cells of every medium and in a sentence below, which names those apart."""
    folder = compared(tmp_path / "s")
    first = pivots(read_study(folder))[0]
    assert [row[:4] for row in first.as_rows()] == [
        ["Arm", "a 1", "b", "red"],
        [
            "base",
            "50.50 ± 0.71 (2) ≈ paper 52.00 ± 0.79",  # they touch: 51.21
            "50.50 ± 0.71 (2) ≠ paper 49.70",
            "21.00 ± 1.41 (2) ≠ paper 24.00 ± 1.50",
        ],
        [ARMS[1], "61.00 ± 1.41 (2) ≈ paper 62.21 ± 0.29", "61.00 ± 1.41 (2) ≠ paper 59.00", "-"],
        [ARMS[2], "73.00 (1) | paper 73.00 ± 0.50", "71.50 ± 2.12 (2)", "-"],
    ]
    assert first.notes == ("X.", AGREEMENT)
    assert report.main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "50.50 ± 0.71 (2) ≈ paper 52.00 ± 0.79" in printed and f"Paper: X. {AGREEMENT}" in printed
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<span class="beside">≠ paper 24.00 ± 1.50</span>' in page and AGREEMENT in page
    assert report.main([str(folder), "--format=md,tex,csv"]) == 0
    text = (folder / "export" / "results.md").read_text()
    assert "| 50.50 ± 0.71 (2) ≈ paper 52.00 ± 0.79 |" in text and AGREEMENT in text
    text = (folder / "export" / "results.tex").read_text()
    assert "21.00 $\\pm$ 1.41 (2) $\\neq$ paper 24.00 $\\pm$ 1.50" in text
    rows = {(row["Setting"], row["Arm"]): row for row in read_csv(folder / "export")}
    for cell, heading, numbers in (
        (("a 1", "base"), "Accuracy (%)", ("52", "0.79", "overlap")),
        (("b", "base"), "Accuracy (%)", ("49.7", "", "apart")),
        (("a 1", ARMS[2]), "Accuracy (%)", ("73", "0.5", "one seed")),
        (("b", ARMS[2]), "Accuracy (%)", ("", "", "")),
        (("b", "base"), "domains/red", ("0.24", "0.015", "apart")),  # in the unit of that column
    ):
        assert tuple(rows[cell][f"{heading} paper: {part}"] for part in ("mean", "std", "note")) == numbers


def test_without_seeds_or_spreads_nothing_is_said_about_intervals(tmp_path):
    """One seed of every cell; seconds without spreads. A study without settings has its table on the console, too."""
    study = read_study(make_cells(tmp_path / "s", (), dict(source="X", comparable=True, values={"base": 50.0})))
    one = dataclasses.replace(study, runs=tuple(run for run in study.runs if run.seed == 0))
    paper = paper_of(study.config)
    found = pivot(one.summary, ACCURACY, paper)
    assert found.as_rows()[1] == ["base", "50.00 (1) | paper 50.00"]
    assert found.notes == ("X.", "One seed has no interval to compare.")
    seconds = paper._replace(metric=SECONDS)
    summary = {CellName("", "base"): {SECONDS.name: {"mean": 50.0, "std": 1.0, "n": 2}}}
    assert pivot(summary, SECONDS, seconds).as_rows()[1] == ["base", "50 ± 1 (2) | paper 50"]
    with_spread = seconds._replace(spreads={"": {"base": 2.0}})
    assert pivot(summary, SECONDS, with_spread).as_rows()[1] == ["base", "50 ± 1 (2) ≈ paper 50 ± 2"]


def test_the_papers_numbers_may_be_of_a_measurement(cells):
    """In its own unit, not in percent; cells that have not recorded it are empty; tables have accuracy, too."""
    study, metric = read_study(cells), "measured/ranks/nesum"
    of_paper = dict(study.config["paper"], metric=metric, values={"b": {"base": 1201}})
    runs = [
        run._replace(metrics=(*run.metrics[:-1], run.metrics[-1] | {metric: 2.0 + run.seed}))
        if (run.setting, run.arm) == ("b", "base")
        else run
        for run in study.runs
    ]
    paper = paper_of(study.config | {"paper": of_paper})
    other = dataclasses.replace(study, config=study.config | {"paper": of_paper}, runs=tuple(runs))
    rows = pivot(other.summary, paper.metric, paper).as_rows()
    assert rows[1:3] == [["base", "-", "2.5 ± 0.7071 (2)"], ["base (paper, not comparable)", "", "1201"]]
    assert paper_note(paper) == "X & Y, Table_1 (ranks/nesum); not comparable: small data."
    assert pivot(study.summary, paper.metric, paper).as_rows()[1] == ["base", "-", "-"]
    first, accuracies, *_ = pivots(other)
    assert [row[:3] for row in first.as_rows()] == rows and first.notes == (paper_note(paper),)
    assert accuracies.as_rows() == pivot(study.summary, ACCURACY, means=means_of(study.config)).ours


@pytest.mark.usefixtures("unrendered")
def test_the_papers_numbers_may_be_of_what_runs_give_together(tmp_path):
    """Rounds to the best accuracy of an arm, and seconds, by hand; unknown ones stay empty. Accuracies have theirs."""
    of_paper = PAPER | dict(metric="rounds_to_target", target="base", values={"b": {ARMS[1]: 12.0}})
    folder = make_cells(tmp_path / "s", paper=of_paper)
    first = summary_for_paper(read_study(folder))["b", ARMS[1], ""]["rounds_to_target"]
    assert first == {"mean": 1.0, "std": 0.0, "n": 2}  # base: 0.4, 0.5; this arm: 0.5, 0.6
    first, accuracies, *_ = pivots(read_study(folder))
    rows = first.as_rows()
    ((title, by_arm, _),) = results_of({"s": read_study(folder)}).targets
    assert rows[1][:3] == ["base", "2 ± 0 (2)", "2 ± 0 (2)"]
    assert rows[2:4] == [[ARMS[1], *["1 ± 0 (2)"] * 2, "1"], [f"{ARMS[1]} (paper, not comparable)", "", "12", ""]]
    assert "(rounds to the best accuracy of base with the same seed; its own are all its rounds)" in first.notes[0]
    assert accuracies.metric == ACCURACY and accuracies.ours[1][1] == "50.50 ± 0.71 (2)"
    assert title == "s: rounds to base" and by_arm[2][:3] == [ARMS[1], "1 ± 0 (2 of 2)", "2.00x"]
    page = write_report(folder).read_text(encoding="utf-8")
    assert "Rounds to the target of all cells" in page and '<span class="below">12</span>' in page

    config = read_study(folder).config
    (folder / "config.json").write_text(json.dumps(config | {"paper": of_paper | {"target": "decorr strength=2"}}))
    assert pivots(read_study(folder))[0].ours[1] == ["base", "-", "-", "-"]  # that arm has no runs yet

    of_paper = PAPER | dict(metric="seconds_per_round", values={"b": {"base": 26.0}})
    (folder / "config.json").write_text(json.dumps(config | {"paper": of_paper}))
    for seed, seconds in enumerate((3.0, 5.0)):
        times = [(1, 9.0, 2.0), (2, 8.0, 0.0), (4, 2 * seconds, 0.0), (5, seconds + 1, 0.0), (6, seconds - 1, 0.0)]
        lines = [json.dumps(dict(round=r, train=train, compile=c)) for r, train, c in times]
        (folder / "b" / "base" / f"seed{seed}" / "timing.jsonl").write_text("\n".join(lines) + "\n")
    assert seconds_per_round(read_study(folder))["a 1", "base", ""] == {"mean": None, "std": None, "n": 0}
    first = pivots(read_study(folder))[0]
    rows = first.as_rows()  # medians 3.5 of 8, 3, 4, 2, and 5.5 of 8, 5, 6, 4
    assert rows[1:3] == [["base", "-", "4.5 ± 1.414 (2)", "-"], ["base (paper, not comparable)", "", "26", ""]]
    assert first.notes == ("X & Y, Table_1 (seconds per round); not comparable: small data.",)


@pytest.mark.usefixtures("unrendered")
def test_the_page_has_the_pivot_the_settings_and_the_sweep(cells):
    page = write_report(cells).read_text(encoding="utf-8")
    assert '<span class="below">50.50</span>' in page and "not comparable: small data." in page
    assert '<th scope="col">both</th>' in page
    assert page.count('<details class="section"><summary>Setting') == 2 and "Accuracy (%) of all cells" in page
    assert "a 1: decorr strength=1: results of 1 of 2 seeds." in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids)) and {"setting0-sweep", "setting1-sweep", "all-accuracy"} <= set(ids)


@pytest.mark.usefixtures("unrendered")
def test_without_settings_a_papers_numbers_are_by_arm(tmp_path):
    paper = dict(source="X", comparable=True, values={"base": 60.0})
    page = write_report(make_cells(tmp_path / "s", (), paper)).read_text(encoding="utf-8")
    assert '<span class="beside">≠ paper 60.00</span>' in page and "<summary>Setting" not in page


def test_differences_are_those_of_equal_seeds_on_equal_partitions(tmp_path):
    folder = make_cells(tmp_path / "s", ())
    found = comparison(read_study(folder), CellName("", ARMS[1]), "base")
    assert found[:3] == pytest.approx((0.105, np.std([0.1, 0.11], ddof=1), 2))
    np.savez(folder / ARMS[1] / "seed1" / "partition.npz", class_counts=np.full((3, 2), 9))
    found = comparison(read_study(folder), CellName("", ARMS[1]), "base")
    assert found.mean == pytest.approx(0.1) and found.n == 1 and math.isnan(found.std)
    hashes = {arm: {"seed0": {"partition": arm}, "seed1": {"partition": "same"}} for arm in ARMS}
    (folder / "provenance.json").write_text(json.dumps({"starts": [{"sha256": hashes}]}))
    by_hash = comparison(read_study(folder), CellName("", ARMS[1]), "base")
    assert by_hash.mean == pytest.approx(0.11) and by_hash.n == 1
    rows = (folder / ARMS[1] / "seed1" / "metrics.jsonl").read_text().splitlines()[:1]
    (folder / ARMS[1] / "seed1" / "metrics.jsonl").write_text(rows[0] + "\n")  # not at the same round yet
    assert comparison(read_study(folder), CellName("", ARMS[1]), "base").n == 0


def test_files_of_one_study(cells, tmp_path, capsys):
    before = {path: path.read_bytes() for path in cells.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert report.main([str(cells), f"--out={out}", "--format=md,tex,csv,svg", "--base=base"]) == 0
    assert before == {path: path.read_bytes() for path in cells.rglob("*") if path.is_file()}
    markdown = (out / "results.md").read_text()
    assert "| Setting | Arm | Accuracy (%) | Best | Last 10 |" in markdown and "| --- | --- | ---: |" in markdown
    assert "| b | decorr strength=1 | **71.50 ± 2.12** | **71.50 ± 2.12** | - |" in markdown
    assert "| b | decorr strength=0.1 | +10.50 ± 0.71 | +4.15 to +16.85 | 0.5 | 2 |" in markdown
    assert markdown.endswith("not comparable: small data.\n")
    latex = (out / "results.tex").read_text()
    assert (
        "\\begin{tabular}{llrrrrrrr}" in latex
        and "\\textbf{71.50 $\\pm$ 2.12}" in latex
        and "X \\& Y, Table\\_1" in latex
    )
    assert latex.count("\\\\\n") == 7 + 5 + 5  # with headings: cells, differences, arms with the paper's row
    rows = read_csv(out)
    assert [(row["Setting"], row["Arm"]) for row in rows] == [(s, arm) for s in ("a 1", "b") for arm in ARMS]
    assert float(rows[4]["Accuracy (%): mean"]) == pytest.approx(61) and rows[2]["Accuracy (%): std"] == ""
    assert float(rows[5][DIFFERENCE + "mean"]) == pytest.approx(21) and rows[5][DIFFERENCE + "n"] == "2"
    assert float(rows[4][DIFFERENCE + "low"]) == pytest.approx(4.147, abs=1e-3) and rows[4][DIFFERENCE + "p"] == "0.5"
    assert "−" not in (out / "results.csv").read_text()
    figures = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*.svg")}
    assert all("var(--" not in text and "#000000" in text for text in figures.values())  # inks of the page
    assert {"accuracy.svg", "a 1/accuracy.svg", "b/sweep.svg", "b/partition.svg"} <= figures.keys()
    assert "results.csv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (("x/s", "y/s", "x_s"), ("x_s", "y_s", "{tmp}_x_s")),
        (("a_b/c", "a/b_c"), ("1_{tmp}_a_b_c", "2_{tmp}_a_b_c")),  # whatever stands before them
        (("x/s", "x/../x/s/", "y/t", "y/t"), ("s", "t")),  # each once
    ],
)
def test_several_studies_have_names_of_their_own(tmp_path, monkeypatch, places, names):
    """In the table, and as folders of figures."""
    for place in {Path(os.path.normpath(place)) for place in places}:
        make_cells(tmp_path / place, ())
    monkeypatch.chdir(tmp_path)
    assert report.main([*places, "--out=out", "--format=csv"]) == 0
    rows = read_csv(Path("out"))
    found = list(dict.fromkeys(row["Study"] for row in rows))
    assert len(found) == len(names) == len(rows) / len(ARMS)
    if "/" not in names[0] and not names[0].startswith("1_"):
        assert found == [name.format(tmp=tmp_path.name) for name in names]
    drawn = []
    monkeypatch.setattr(report, "save_figures", lambda study, folder, kinds: drawn.append(folder) or [])
    assert report.main([*places, "--out=out", "--format=svg"]) == 0
    assert drawn == [Path("out") / name for name in found]


@pytest.fixture
def no_pages(monkeypatch):
    """Reports are not drawn, which takes seconds."""
    monkeypatch.setattr(report, "write_report", lambda study, view, wait: study.path / "report.html")


def test_accuracies_of_different_things_are_not_compared(tmp_path, capsys, no_pages):
    """Neither by differences nor by rounds to a target; each format says what its numbers are of, and why."""
    folder = make_cells(tmp_path / "s", ("a", "b"), {})
    for file in folder.glob(f"a/{ARMS[1]}/seed*/summary.json"):
        file.write_text(json.dumps({"headline": HEADLINES["personal"], "local": "client 0"}))
    study = read_study(folder)
    assert comparison(study, CellName("a", ARMS[1]), "base").n == 0
    assert comparison(study, CellName("b", ARMS[1]), "base").n == 2
    assert rounds_to_target(study, "base")["a", ARMS[1], ""].num_runs == 0
    assert rounds_to_target(study, "base")["b", ARMS[1], ""].num_runs == 2
    assert target_table(study, "base")[2][1:3] == ["-", "-"]
    unlike = f"Not compared with base, as their accuracy is of something else: {ARMS[1]}."
    assert target_note(study, "base").endswith(unlike)

    assert report.main([str(folder), "--base=base", "--target=base"]) == 0
    assert unlike in capsys.readouterr().out
    own = f"of the {HEADLINES['personal']} (a/{ARMS[1]})"
    without = f"No difference to base: a/{ARMS[1]} (their accuracy is of something else)."
    for kind in ("md", "tex"):
        text = (folder / "export" / f"results.{kind}").read_text()
        assert text.count(own) == 2 and without in text and text.count(unlike) == 1  # also below arms by settings
    rows = {(row["Setting"], row["Arm"]): row for row in read_csv(folder / "export")}
    row, of_base = rows["a", ARMS[1]], rows["a", "base"]
    assert row["Accuracy (%): of"] == HEADLINES["personal"] and row["R: of"] == "client 0"
    assert of_base["Accuracy (%): of"] == HEADLINES["server"]
    assert row[DIFFERENCE + "mean"] == "" and row[DIFFERENCE + "note"] == "their accuracy is of something else"
    assert rows["b", ARMS[1]][DIFFERENCE + "mean"] == "10.5" and rows["b", ARMS[1]][DIFFERENCE + "note"] == ""

    config = json.loads((folder / "config.json").read_text())
    config["paper"] = PAPER | dict(metric="rounds_to_target", target="base", values={"b": {ARMS[1]: 12.0}})
    (folder / "config.json").write_text(json.dumps(config))
    assert pivots(read_study(folder))[0].notes[1] == unlike
    assert report.main([str(folder)]) == 0 and unlike in capsys.readouterr().out


def test_why_there_is_no_difference(tmp_path):
    folder = make_cells(tmp_path / "s", ())
    study, cell = read_study(folder), CellName("", ARMS[1])
    assert (
        why_none(dataclasses.replace(study, runs=study.of_arm(ARMS[1])), cell, "base") == "no run of base is finished"
    )
    kept = [run for run in study.runs if (run.arm, run.seed) in (("base", 0), (ARMS[1], 1))]
    assert why_none(dataclasses.replace(study, runs=tuple(kept)), cell, "base") == "no seed in common"
    for file in folder.glob(f"{ARMS[1]}/*/partition.npz"):
        np.savez(file, class_counts=np.full((3, 2), 9))
    assert "on the same partition at the same round" in why_none(read_study(folder), cell, "base")


def unfinish(folder: Path, *runs: str) -> Path:
    """The study's folder, in which these runs have come to the first of their two rounds."""
    for run in runs:
        (folder / run / "summary.json").unlink()
        rows = (folder / run / "metrics.jsonl").read_text().splitlines()
        (folder / run / "metrics.jsonl").write_text(f"{rows[0]}\n")
    return folder


def test_unfinished_runs_are_listed_below_the_tables(tmp_path, capsys, no_pages):
    """Of one arm one of two runs, of another both; and so are they on the console and on the page."""
    folder = unfinish(
        make_cells(tmp_path / "s", ("a", "b"), {}), "a/base/seed1", f"b/{ARMS[1]}/seed0", f"b/{ARMS[1]}/seed1"
    )
    assert report.main([str(folder), "--base=base", "--target=base"]) == 0
    out = folder / "export"
    left_out = "Unfinished, and not in the tables: a/base seed 1 (round 1 of 2), "
    left_out += f"b/{ARMS[1]} seed 0 (round 1 of 2), b/{ARMS[1]} seed 1 (round 1 of 2)."
    assert left_out in capsys.readouterr().out
    text = (out / "results.md").read_text()
    assert left_out in text and left_out in (out / "results.tex").read_text()
    assert "| a | base | 50.00 | 50.00 |" in text and f"| b | {ARMS[1]} | - | - |" in text
    assert f"| {ARMS[1]} | 61.00 ± 1.41 (2) | - | - |" in text  # arms by settings, and the mean over them
    assert f"| {ARMS[1]} | 1 (1 of 1) | 2.00x | - | - |" in text
    rows = {(row["Setting"], row["Arm"]): row for row in read_csv(out)}
    assert rows["a", "base"]["Unfinished"] == "seed 1 (round 1 of 2)" and rows["a", "base"]["Accuracy (%): n"] == "1"
    assert rows["b", ARMS[1]]["Accuracy (%): mean"] == "" and rows["b", ARMS[1]]["Accuracy (%): n"] == "0"
    assert rows["b", ARMS[1]][DIFFERENCE + "note"] == "no run is finished"
    assert set(read_study(folder).finished().of_setting("b").arms) == {"base", ARMS[2]}  # figures are of these

    assert report.main([str(folder)]) == 0
    assert left_out in capsys.readouterr().out
    assert "a: base, seed 1: unfinished, round 1 of 2; not in the tables." in html.missing_results(read_study(folder))
    assert pivots(read_study(folder))[0].ours[1][1] == "50.00 (1)"


@pytest.mark.usefixtures("unrendered")
def test_unfinished_runs_have_rows_of_their_own_where_they_are_asked_for(tmp_path, capsys):
    """In every format, and on console and page; what is finished stays as it is."""
    folder = unfinish(make_cells(tmp_path / "s", (), {}), "base/seed1", f"{ARMS[1]}/seed0", f"{ARMS[1]}/seed1")
    assert report.main([str(folder), "--unfinished", "--base=base", "--format=md,tex,csv"]) == 0
    mark = "(unfinished: round 1 of 2)"
    text = (folder / "export" / "results.md").read_text()
    assert f"| base {mark} | 41.00 |" in text and "| base | 50.00 |" in text
    assert f"| {ARMS[1]} {mark} | 51.00 ± 1.41 |" in text and "Unfinished, and" not in text
    assert f"base {mark} & 41.00 &" in (folder / "export" / "results.tex").read_text()
    rows = {row["Arm"]: row for row in read_csv(folder / "export")}
    assert rows[f"base {mark}"]["Accuracy (%): mean"] == "41" and rows["base"]["Accuracy (%): n"] == "1"
    assert {row[DIFFERENCE + "mean"] for arm, row in rows.items() if mark in arm} == {""}
    capsys.readouterr()
    assert report.main([str(folder), "--unfinished"]) == 0
    assert f"base {mark}" in capsys.readouterr().out
    assert f"base {mark}" in (folder / "report.html").read_text(encoding="utf-8")


def test_names_mean_nothing_in_the_files(tmp_path):
    """Neither formulas to a spreadsheet, nor HTML, nor commands to LaTeX; numbers stay numbers."""
    names = ["=cmd|'/c calc'!A1", "+1", "-2", "@x", "<img src=x onerror=alert(1)>", "`a` [b](c) | d",
             "\\input{/etc/passwd}", "[5cm]", "*x_1$^2#&%~", "two\nlines"]  # fmt: skip
    folder = make_cells(tmp_path / "s", (), {})
    config = json.loads((folder / "config.json").read_text()) | {"sweep": {}, "arms": {name: {} for name in names}}
    (folder / "config.json").write_text(json.dumps(config))
    study = read_study(folder)
    runs = tuple(study.runs[0]._replace(arm=name) for name in names)
    results = results_of({"-s": dataclasses.replace(study, runs=runs), "t": study}, "base")
    rows = list(csv.reader(io.StringIO(TABLES["csv"](results, {}))))
    assert [row[1] for row in rows[1 : len(names) + 1]] == [f"'{name}" if name[0] in "=+-@" else name for name in names]
    assert rows[1][0] == "'-s" and rows[-1][0] == "t" and rows[-1][rows[0].index("R: mean")] == "-2"
    text = TABLES["md"](results, {})
    table = text[: text.index("\n\n")].splitlines()
    assert len(table) == 2 + len(results.summary) and not re.search(r"<|(?<!\\)[`\[]", text)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in text and "two lines" in text
    latex = TABLES["tex"](results, {"two\n\\input{x}": dataclasses.replace(study, config=study.config | {"paper": {}})})
    assert "\\input" not in latex and "\\textbackslash{}input\\{/etc/passwd\\}" in latex
    assert "{[}5cm{]}" in latex and "{*}x\\_1\\$\\textasciicircum{}2\\#\\&\\%\\textasciitilde{}" in latex
    assert in_latex("a\n\\input{x}") == "a \\textbackslash{}input\\{x\\}"


def test_words_keep_their_underscores():
    assert in_markdown("fedvls_feddecorr _a_ nc/nc2_norms") == "fedvls_feddecorr \\_a\\_ nc/nc2_norms"


def test_links_and_pipes_at_the_places_of_files_are_replaced(tmp_path):
    """None is written through, and none is waited for."""
    folder = make_cells(tmp_path / "s", ())
    (folder / "export").mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / "export" / "results.md").symlink_to(tmp_path / "precious")
    os.mkfifo(folder / "export" / "results.csv")
    assert report.main([str(folder), "--format=md,csv"]) == 0
    assert (tmp_path / "precious").read_text() == "mine" and (folder / "export" / "results.csv").is_file()


def test_means_over_settings(cells):
    """Of arms that all of the settings have; the paper may have them, too."""
    study = read_study(cells)
    means = {"both": ("a 1", "b"), "one": ("b",)}
    rows = pivot(study.summary, means=means).ours
    assert rows[0] == ["Arm", "a 1", "b", "both", "one"] and rows[1][3:] == ["50.50", "50.50"]
    assert rows[3][1:] == ["73.00 (1)", "71.50 ± 2.12 (2)", "72.25", "71.50"]
    missing = {cell: metrics for cell, metrics in study.summary.items() if str(cell) != "b/base"}
    assert pivot(missing, means=means).ours[1] == ["base", "50.50 ± 0.71 (2)", "-", "-", "-"]
    paper = paper_of(study.config)._replace(values={"both": {"base": 40.0}})
    assert pivot(study.summary, ACCURACY, paper, means).as_rows()[2] == [
        "base (paper, not comparable)",
        "",
        "",
        "40.00",
        "",
    ]


@pytest.mark.parametrize(
    ("means", "words"),
    [
        (dict(m=("a", "c")), "unknown setting in means.m 'c'"),
        (dict(a=("b",)), "means.a: expected at least one setting, and a name that no setting has"),
        (dict(m="a"), "means.m"),
    ],
)
def test_means_that_make_no_sense(means, words):
    config = quickstart.get_config("smoke")
    config.settings, config.means = dict(a={}, b={}), means
    with pytest.raises(UserError, match=words):
        check_study(plain(config))


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
    assert found["a", "base", ""].rounds["mean"] == 6 and found["a", "base", ""].speedup == 1
    assert found["a", ARMS[1], ""].rounds == {"mean": 3, "std": pytest.approx(2**0.5), "n": 2}
    assert found["a", ARMS[1], ""].speedup == 2
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
    rows = read_csv(tmp_path / "out")
    assert [(row["Study"], row["Setting"]) for row in rows[::3]] == [("cells", "a 1"), ("cells", "b"), ("other", "")]
    results = results_of({"x": read_study(other)}, "base")
    assert len(results.compared) == 1 and [row[0] for row in results.compared[0].rows] == ["Arm", *ARMS[1:]]
    for arguments, words in (
        ([str(cells), str(other), "--base=base"], "give --out=FOLDER"),
        ([str(cells), "--base=bas"], "unknown arm in --base 'bas': did you mean 'base'"),
        ([str(cells), "--format=doc"], "unknown format 'doc'"),
        ([str(tmp_path), "--format=md"], "config.json: no such file"),
        ([str(cells), "--format=md", "--out=/dev/null/x"], "cannot be written"),
    ):
        assert report.main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


@pytest.mark.filterwarnings("error")
def test_a_sweep_is_drawn_against_its_values(tmp_path):
    """Also where only one of them has been measured."""
    folder = make_cells(tmp_path / "s", ())
    study = read_study(folder)
    (line,) = lines_of(arms_of(study.config), "strength")
    assert line.name == "decorr" and line.values == (0.1, 1) and line.arms == ARMS[1:]
    figure = sweep(study)
    accuracy, _, collapse = figure.axes
    points = accuracy.containers[0].lines[0]
    assert points.get_xdata() == pytest.approx([0.1, 1]) and points.get_ydata() == pytest.approx([61, 71.5])
    assert accuracy.get_xscale() == "log" and accuracy.lines[-1].get_ydata() == pytest.approx([50.5] * 2)  # the base
    assert collapse.containers[0].lines[0].get_ydata() == pytest.approx([-1, -2])
    assert all(axes.get_xlim() == pytest.approx((10**-1.05, 10**0.05)) for axes in figure.axes)
    for file in folder.glob(f"{ARMS[2]}/*/metrics.jsonl"):
        file.unlink()
    assert all(axes.get_xlim() == pytest.approx((0, 0.2)) for axes in sweep(read_study(folder)).axes)
    study.config["sweep"].clear()
    assert sweep(study) is None


def test_numbers_of_a_sweep_are_those_that_are_drawn(tmp_path):
    """R of several watched clients is their mean."""
    folder = make_cells(tmp_path, settings=())
    for file in folder.glob("*/seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [row | {"R_mean": 7.0, "R_min": 6.0, "R_max": 8.0} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    heading, rows, _ = sweep.select(read_study(folder))
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
