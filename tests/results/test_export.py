"""Tables of studies as files, on the console and on the page; and a paper's numbers in them. Nothing is trained."""

import csv
import dataclasses
import io
import json
import os
import re
from pathlib import Path

import pytest
from small_studies import error_of, tree
from study_files import ARMS, LIKE, PAPER, configure, rewrite, unfinish, write_arms, write_cells

from experiments.commands import report
from experiments.study.progress.console import Console
from fedjax_collapse.results import load, tables_of, write_report, write_tables
from fedjax_collapse.results.metrics import ACCURACY, SECONDS
from fedjax_collapse.results.page import missing_results, render
from fedjax_collapse.results.paper import paper_of
from fedjax_collapse.results.tables import pivot, pivots
from fedjax_collapse.results.writing import latex, markdown
from fedjax_collapse.run.measurement import HEADLINES

pytestmark = pytest.mark.usefixtures("unrendered")

DIFFERENCE = "Accuracy (%) difference: "  # columns of means.csv


def read(folder: Path, kind: str) -> str:
    """The text of a table, without the spaces that align its columns."""
    return re.sub(" +", " ", (folder / f"results.{kind}").read_text(encoding="utf-8"))


def read_csv(folder: Path, name="means") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()))


def by_cell(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    return {(row.get("Setting", ""), row["Arm"]): row for row in read_csv(folder)}


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    return write_cells(tmp_path_factory.mktemp("studies") / "cells")


def test_files_of_one_study(cells, tmp_path, capsys):
    before, out = tree(cells), tmp_path / "out"
    assert report.main([str(cells), f"--out={out}", "--format=md,tex,csv", "--base=base"]) == 0
    assert tree(cells) == before
    text = read(out, "md")
    assert "| Setting | Arm | Accuracy (%) | Best | R | Seeds |" in text and "|:----------|:---" in text
    assert "| b | decorr strength=1 | **71.50 ± 2.12** | **71.50 ± 2.12** | −2.000 ± 0.000 | 2 |" in text
    assert "| b | decorr strength=0.1 | +10.50 ± 0.71 | +4.15 to +16.85 | 0.5 | 2 |" in text
    assert "Paper: X &amp; Y, Table_1; not comparable: small data." in text
    text = read(out, "tex")
    assert "\\begin{tabular}{llrrrr}" in text and "\\textbf{71.50 $\\pm$ 2.12}" in text and "X \\& Y, Table\\_1" in text
    assert text.count("\\\\\n") == 7 + 5 + 5  # with headings: cells, differences, arms with the paper's row
    rows = read_csv(out)
    assert [(row["Setting"], row["Arm"]) for row in rows] == [(s, arm) for s in ("a 1", "b") for arm in ARMS]
    assert float(rows[4]["Accuracy (%): mean"]) == pytest.approx(61) and rows[2]["Accuracy (%): std"] == ""
    assert float(rows[5][DIFFERENCE + "mean"]) == pytest.approx(21) and rows[5][DIFFERENCE + "n"] == "2"
    assert float(rows[4][DIFFERENCE + "low"]) == pytest.approx(4.147, abs=1e-3) and rows[4][DIFFERENCE + "p"] == "0.5"
    assert f"wrote {out / 'means.csv'}" in capsys.readouterr().out


def test_the_csv_file_has_a_row_for_each_run_with_swept_values_as_columns(cells, tmp_path):
    """Also those of data, which make settings; runs that are not finished are left out."""
    write_tables({"cells": load(cells)}, tmp_path, "csv")
    rows = read_csv(tmp_path, "results")
    assert list(rows[0]) == ["Setting", "Arm", "strength", "Seed", "Accuracy (%)", "Best", "R"] and len(rows) == 11
    assert [row["strength"] for row in rows[:5]] == ["", "", "0.1", "0.1", "1"]
    assert [row["Accuracy (%)"] for row in rows[:5]] == ["50", "51", "60", "62", "73"] and rows[4]["Seed"] == "1"
    folder = tmp_path / "swept"
    arms, sweep = dict(m=dict(partition=dict(alpha=1))), {"partition.alpha": [0.1, 10], "training.epochs": [1, 2]}
    names = [f"m alpha={alpha} epochs={epochs}" for alpha in (0.1, 10) for epochs in (1, 2)]
    write_arms(folder, {name: [0.5, 0.6] for name in names}, arms=arms, sweep=sweep, training=dict(epochs=1))
    unfinish(folder, f"{names[-1]}/seed1")
    study = load(folder)
    assert [str(cell) for cell in study.cells] == [f"alpha={a}/m epochs={e}" for a in (0.1, 10) for e in (1, 2)]
    write_tables({"s": study}, tmp_path, "csv")
    rows = [list(row.values())[:5] for row in read_csv(tmp_path, "results")]
    assert rows[1:3] == [["alpha=0.1", "m epochs=1", "0.1", "1", "1"], ["alpha=0.1", "m epochs=2", "0.1", "2", "0"]]
    assert len(rows) == 7 and rows[-1][0] == "alpha=10"
    assert by_cell(tmp_path)["alpha=10", "m epochs=2"]["Unfinished"] == "seed 1 (round 1 of 2)"
    assert list(study.frame)[:6] == ["setting", "arm", "seed", "alpha", "epochs", "round"]


def test_best_and_minus_signs_of_each_format(tmp_path, capsys, monkeypatch):
    """The best is bold, what may be as good is underlined; nothing of that is in CSV files, or in plain lines."""
    study = write_arms(tmp_path / "study", LIKE)
    assert report.main([str(study), "--format=md,tex,csv"]) == 0
    text = {kind: read(study / "export", kind) for kind in ("md", "tex", "csv")}
    assert "| **60.33 ± 9.71** |" in text["md"] and "| <u>60.00 ± 10.00</u> |" in text["md"]
    assert "| 50.00 ± 9.54 |" in text["md"] and "−1.000" in text["md"]
    assert "\\textbf{60.33 $\\pm$ 9.71}" in text["tex"] and "\\underline{60.00 $\\pm$ 10.00}" in text["tex"]
    assert "$-$1.000" in text["tex"] and "−" not in text["tex"]
    assert by_cell(study / "export")["", "near"]["R: mean"] == "-1" and not set("−*<") & set(text["csv"])
    page = render(load(study))["report.html"]
    assert "<td><b>60.33 ± 9.71</b></td>" in page and "<td><u>60.00 ± 10.00</u></td>" in page
    assert "<td>−1.000 ± 1.000</td>" in page and "Accuracy: differences from base" in page
    Console().print_table(load(study))
    assert "Bold" not in capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stream.isatty = lambda: True
    Console(stream=stream).print_table(load(study))
    shown = stream.buffer.getvalue().decode()
    assert "\x1b[1m60.33 ± 9.71\x1b[0m" in shown and "\x1b[4m60.00 ± 10.00\x1b[0m" in shown
    assert "Bold: the best" in shown and not re.search(r"\x1b\[[14]m *50\.00", shown)


def test_columns_and_arms_are_those_asked_for_in_every_format(tmp_path, capsys):
    chosen = ["--columns=R,accuracy", "--arms=far,base,near", "--sort=accuracy"]
    study = write_arms(tmp_path / "s", LIKE)
    assert report.main([str(study), *chosen, "--format=md,tex,csv"]) == 0
    lines = read(study / "export", "md").splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| near", "| base", "| far"]
    assert lines[0] == "| Arm | R | Accuracy (%) | Seeds |"
    assert "Arm & R & Accuracy (\\%) & Seeds" in read(study / "export", "tex")
    rows = read_csv(study / "export")
    assert [row["Arm"] for row in rows] == ["near", "base", "far"] and "Best: mean" not in rows[0]
    assert rows[1][DIFFERENCE + "from"] == "far"  # the first that is asked for
    capsys.readouterr()
    assert report.main([str(study), *chosen]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["Arm", "R", "Accuracy", "(%)", "Seeds"] and shown[1].startswith("near")
    heads = re.findall(r'<th scope="col">(.*?)</th>', (study / "report.html").read_text(encoding="utf-8"))
    assert heads[:4] == ["Arm", "R", "Accuracy (%)", "Seeds"]
    for option in ("--columns=accuracy,rank", "--arms=bas", "--sort=rank"):
        assert report.main([str(study), option]) == 2
        error_of(capsys, f"in {option.partition('=')[0]}", "expected one of")


def test_several_studies_in_one_table(cells, tmp_path, capsys, monkeypatch):
    """Each place once; figures of each are in a folder of its own."""
    other, out, drawn = write_cells(tmp_path / "other", ()), tmp_path / "out", []
    monkeypatch.setattr(report, "save_figures", lambda study, folder, kinds: drawn.append(folder) or [])
    assert report.main([str(cells), str(other), f"{other}/../other", f"--out={out}", "--format=csv,md,svg"]) == 0
    rows = read_csv(out)
    assert [(row["Study"], row["Setting"]) for row in rows[::3]] == [("cells", "a 1"), ("cells", "b"), ("other", "")]
    assert [row["Study"] for row in read_csv(out, "results")] == ["cells"] * 11 + ["other"] * 6
    assert (rows[0][DIFFERENCE + "from"], rows[1][DIFFERENCE + "from"]) == ("", "base")  # not to itself
    assert "| Study | Setting | Arm |" in read(out, "md") and "| other | | base | 50.50 ± 0.71 |" in read(out, "md")
    assert drawn == [out / "cells", out / "other"]
    for arguments, words in (
        ([str(cells), str(other), "--base=base"], "give --out=FOLDER"),
        ([str(cells), "--base=bas"], "unknown arm in --base 'bas': did you mean 'base'"),
        ([str(cells), "--format=md", "--out=/dev/null/x"], "cannot be written"),
    ):
        assert report.main(arguments) == 2 and error_of(capsys, words)


def test_accuracies_of_different_things_are_not_compared(tmp_path):
    """Neither by differences nor by rounds to a target; each format says what its numbers are of, and why."""
    of_paper = dict(source="X", comparable=True, metric="rounds_to_target", target="base", values={"b": {"base": 2.0}})
    folder = write_cells(tmp_path / "s", ("a", "b"), paper=of_paper)
    for file in folder.glob(f"a/{ARMS[1]}/seed*/summary.json"):
        file.write_text(json.dumps({"headline": HEADLINES["personal"], "local": "client 0"}))
    assert report.main([str(folder), "--base=base"]) == 0
    unlike = f"Not compared with base, as their accuracy is of something else: {ARMS[1]}."
    assert unlike in pivots(load(folder))[0].notes[0]
    for kind in ("md", "tex"):
        text = read(folder / "export", kind)
        assert text.count(f"of the {HEADLINES['personal']} (a/{ARMS[1]})") == 2  # also below arms by settings
        without = f"No difference to base: a/{ARMS[1]} (their accuracy is of something else)."
        assert without in text and text.count(unlike) == 2  # below the paper's table and that of rounds to the target
    assert f"| {ARMS[1]} | - | - | 1 ± 0 (2 of 2) | 2.00x |" in read(folder / "export", "md")
    rows = by_cell(folder / "export")
    row = rows["a", ARMS[1]]
    assert row["Accuracy (%): of"] == HEADLINES["personal"] and row["R: of"] == "client 0"
    assert row[DIFFERENCE + "mean"] == "" and row[DIFFERENCE + "note"] == "their accuracy is of something else"
    assert rows["b", ARMS[1]][DIFFERENCE + "mean"] == "10.5" and rows["b", ARMS[1]][DIFFERENCE + "note"] == ""


def test_unfinished_runs_are_listed_below_the_tables_or_have_rows_of_their_own(tmp_path, capsys):
    """In every format, and on console and page; what is finished stays as it is."""
    runs = "a/base/seed1", f"b/{ARMS[1]}/seed0", f"b/{ARMS[1]}/seed1"
    folder = unfinish(write_cells(tmp_path / "s", ("a", "b"), paper={}), *runs)
    assert report.main([str(folder), "--base=base", "--target=base"]) == 0
    left_out = "Unfinished, and not in the tables: a/base seed 1 (round 1 of 2), "
    left_out += f"b/{ARMS[1]} seed 0 (round 1 of 2), b/{ARMS[1]} seed 1 (round 1 of 2)."
    text, printed = read(out := folder / "export", "md"), capsys.readouterr().out
    assert left_out in printed and left_out in text and left_out in read(out, "tex")
    assert "| a | base | 50.00 | 50.00 |" in text and f"| b | {ARMS[1]} | - | - |" in text
    assert f"| {ARMS[1]} | 61.00 ± 1.41 (2) | - | - |" in text  # arms by settings, and the mean over them
    assert f"| {ARMS[1]} | 1 (1 of 1) | 2.00x | - | - |" in text and "1 (1 of 1)" in printed
    first, row = by_cell(out)["a", "base"], by_cell(out)["b", ARMS[1]]
    assert first["Unfinished"] == "seed 1 (round 1 of 2)" and first["Accuracy (%): n"] == "1"
    assert row["Accuracy (%): n"] == "0" and row[DIFFERENCE + "note"] == "no run is finished"
    assert "a: base, seed 1: unfinished, round 1 of 2; not in the tables." in missing_results(load(folder))

    assert report.main([str(folder), "--unfinished", "--base=base", "--format=md,csv"]) == 0
    text, mark = read(out, "md"), "(unfinished: round 1 of 2)"
    assert f"| a | base {mark} | 41.00 |" in text and "| a | base | 50.00 |" in text
    assert f"| b | {ARMS[1]} {mark} | 51.00 ± 1.41 |" in text and "Unfinished, and" not in text
    assert {row[DIFFERENCE + "mean"] for (_, arm), row in by_cell(out).items() if mark in arm} == {""}
    assert report.main([str(folder), "--unfinished"]) == 0 and f"base {mark}" in capsys.readouterr().out
    assert f"base {mark}" in (folder / "report.html").read_text(encoding="utf-8")


def test_names_mean_nothing_in_the_files(tmp_path):
    """Neither formulas to a spreadsheet, nor HTML, nor commands to LaTeX; numbers stay numbers."""
    names = ["=cmd|'/c calc'!A1", "+1", "-2", "@x", "<img src=x onerror=alert(1)>", "`a` [b](c) | d",
             "\\input{/etc/passwd}", "[5cm]", "*x_1$^2#&%~", "two\nlines", "fedvls_feddecorr _a_"]  # fmt: skip
    study = load(write_cells(tmp_path / "s", (), sweep={}, arms={name: {} for name in names}))
    runs = [dataclasses.replace(study.of_arm(ARMS[2])[0], arm=name) for name in names]
    study = dataclasses.replace(study, runs=runs)
    write_tables({"-s": study, "t": study}, tmp_path, "csv")
    rows = list(csv.reader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert [row[1] for row in rows[1 : len(names) + 1]] == [f"'{name}" if name[0] in "=+-@" else name for name in names]
    assert rows[1][0] == "'-s" and rows[-1][0] == "t" and rows[-1][rows[0].index("R")] == "-2"
    first, *_ = tables_of({"s": study})
    text, table = markdown(first), markdown(first).splitlines()
    assert len(table) == 2 + len(names) and not re.search(r"<|(?<!\\)[`\[]", text)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in text and "two lines" in text
    assert "fedvls_feddecorr \\_a\\_" in text  # words keep their underscores
    text = latex(first)
    assert "\\input" not in text and "\\textbackslash{}input\\{/etc/passwd\\}" in text
    assert "{[}5cm{]}" in text and "{*}x\\_1\\$\\textasciicircum{}2\\#\\&\\%\\textasciitilde{}" in text


def test_links_and_pipes_at_the_places_of_files_are_replaced(tmp_path):
    """None is written through, and none is waited for."""
    folder, precious = write_cells(tmp_path / "s", ()), tmp_path / "precious"
    (out := folder / "export").mkdir()
    precious.write_text("mine")
    (out / "results.md").symlink_to(precious)
    os.mkfifo(out / "results.csv")
    assert report.main([str(folder), "--format=md,csv"]) == 0
    assert precious.read_text() == "mine" and (out / "results.csv").is_file()


AGREEMENT = (
    "≈: the intervals mean ± standard deviation overlap, in 2 of 3 cells; ≠: not in base at red. "
    "Without a spread of the paper, ≈: its mean is in our interval mean ± standard deviation, in 0 of 2 cells; "
    f"≠: not in base at b, {ARMS[1]} at b. One seed has no interval to compare in {ARMS[2]} at a 1."
)


def test_whether_intervals_overlap_with_the_papers(tmp_path, capsys):
    """At the digits that are shown; in the cells of every medium and in a sentence below, which names those apart."""
    values = {"a 1": {"base": 52.0, ARMS[1]: 62.21, ARMS[2]: 73.0}, "b": {"base": 49.7, ARMS[1]: 59.0}}
    spreads = {"a 1": {"base": 0.79, ARMS[1]: 0.29, ARMS[2]: 0.5}, "red": {"base": 1.5}}
    paper = dict(source="X", comparable=True, values=values | {"red": {"base": 24.0}}, spreads=spreads)
    paper["columns"] = {"red": ("b", "measured/domains/red")}
    folder = write_cells(tmp_path / "s", paper=paper, means={})
    rewrite(folder, "b/base/*/metrics.jsonl", lambda row, _, seed: row | {"measured/domains/red": 0.2 + 0.02 * seed})
    touching, apart = "50.50 ± 0.71 (2) ≈ paper 52.00 ± 0.79", "21.00 ± 1.41 (2) ≠ paper 24.00 ± 1.50"
    first = pivots(load(folder))[0]
    assert first.rows == [
        ["Arm", "a 1", "b", "red"],
        ["base", touching, "50.50 ± 0.71 (2) ≠ paper 49.70", apart],
        [ARMS[1], "61.00 ± 1.41 (2) ≈ paper 62.21 ± 0.29", "61.00 ± 1.41 (2) ≠ paper 59.00", "-"],
        [ARMS[2], "73.00 (1) | paper 73.00 ± 0.50", "71.50 ± 2.12 (2)", "-"],
    ]
    assert f"Paper: X. {AGREEMENT}" in first.notes
    assert report.main([str(folder)]) == 0 and report.main([str(folder), "--format=md,tex,csv"]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, page, read(folder / "export", "md")):
        assert touching in text and apart in text and AGREEMENT in text
    assert "21.00 $\\pm$ 1.41 (2) $\\neq$ paper 24.00 $\\pm$ 1.50" in read(folder / "export", "tex")
    rows = by_cell(folder / "export")
    for cell, heading, numbers in (
        (("a 1", "base"), "Accuracy (%)", ("52", "0.79", "overlap")),
        (("b", "base"), "Accuracy (%)", ("49.7", "", "apart")),
        (("a 1", ARMS[2]), "Accuracy (%)", ("73", "0.5", "one seed")),
        (("b", ARMS[2]), "Accuracy (%)", ("", "", "")),
        (("b", "base"), "domains/red", ("0.24", "0.015", "apart")),  # in the unit of that column
    ):
        assert tuple(rows[cell][f"{heading} paper: {part}"] for part in ("mean", "std", "note")) == numbers


def test_the_papers_numbers_without_seeds_spreads_or_settings(tmp_path):
    """One seed of every cell; seconds, with spreads and without, of rounds that are warm."""
    folder = write_cells(tmp_path / "s", (), paper=dict(source="X", comparable=True, values={"base": 50.0}))
    for seed, s in enumerate((3.0, 5.0)):  # medians 3.5 of 8, 3, 4, 2, and 5.5 of 8, 5, 6, 4
        times = [(1, 9.0, 2.0), (2, 8.0, 0.0), (4, 2 * s, 0.0), (5, s + 1, 0.0), (6, s - 1, 0.0)]
        lines = [json.dumps(dict(round=r, train=train, compile=compiling)) + "\n" for r, train, compiling in times]
        (folder / "base" / f"seed{seed}" / "timing.jsonl").write_text("".join(lines))
    study = load(folder)
    paper = paper_of(study.config)
    found = pivot(dataclasses.replace(study, runs=[run for run in study.runs if run.seed == 0]), ACCURACY, paper)
    assert found.rows[1] == ["base", "50.00 (1) | paper 50.00"]
    assert found.notes[1] == "Paper: X. One seed has no interval to compare."
    seconds = paper._replace(metric=SECONDS)
    assert pivot(study, SECONDS, seconds).rows[1:3] == [["base", "4.5 ± 1.414 (2) | paper 50"], [ARMS[1], "-"]]
    with_spread = seconds._replace(values={"": {"base": 6.0}}, spreads={"": {"base": 1.0}})
    assert pivot(study, SECONDS, with_spread).rows[1] == ["base", "4.5 ± 1.414 (2) ≈ paper 6 ± 1"]


def test_the_papers_numbers_may_be_of_a_measurement_or_of_rounds_to_a_target(tmp_path):
    """In their own unit, not in percent; cells that have not recorded it are empty; tables have accuracy, too."""
    metric = "measured/ranks/nesum"
    folder = write_cells(tmp_path / "s", paper=PAPER | dict(metric=metric, values={"b": {"base": 1201}}))
    accuracies = pivot(load(folder)).rows
    rewrite(folder, "b/base/*/metrics.jsonl", lambda row, _, seed: row | {metric: 2.0 + seed})
    first, second, *_ = pivots(load(folder))
    assert first.rows[1:3] == [["base", "-", "2.5 ± 0.7071 (2)", "-"], ["base (paper, not comparable)", "", "1201", ""]]
    assert first.notes[0] == "Paper: X & Y, Table_1 (ranks/nesum); not comparable: small data."
    assert second.rows == accuracies

    of_paper = PAPER | dict(metric="rounds_to_target", target="base", values={"b": {ARMS[1]: 12.0}})
    first, second, *_ = pivots(load(configure(folder, paper=of_paper)))
    assert first.rows[1] == ["base", "2 ± 0 (2)", "2 ± 0 (2)", "2"]  # base: 0.4, 0.5; the next arm: 0.5, 0.6
    assert first.rows[2:4] == [[ARMS[1], *["1 ± 0 (2)"] * 2, "1"], [f"{ARMS[1]} (paper, not comparable)", "", "12", ""]]
    assert "(rounds to the best accuracy of base with the same seed; its own are all its rounds)" in first.notes[0]
    assert second.rows == accuracies and tables_of({"s": load(folder)})[-1].title == "s: Rounds to base"
    page = write_report(folder).read_text(encoding="utf-8")
    assert "Rounds to the target of all cells" in page and '<td><span class="grey">12</span></td>' in page
    configure(folder, paper=of_paper | {"target": "decorr strength=2"})
    assert pivots(load(folder))[0].rows[1] == ["base", "-", "-", "-"]  # that arm has no runs yet
