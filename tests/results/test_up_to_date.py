"""The report of a study is made again only if something that it is made from has changed."""

import shutil
from types import SimpleNamespace

import pytest
from study_files import unfinish, write_cells

from experiments.commands import report
from experiments.study.progress.console import Console
from experiments.study.resuming import done_runs
from experiments.study.summaries import finish
from fedjax_collapse.config.cells import RunName
from fedjax_collapse.results import page, plot, up_to_date
from fedjax_collapse.results.reading import read_config


@pytest.fixture
def finished(tmp_path, unrendered, monkeypatch, capsys):
    """A finished study, and a function that ends it again and returns whether its report was made."""
    folder, made, render = write_cells(tmp_path / "s"), [], page.render
    monkeypatch.setattr(page, "render", lambda study, *shown: made.append(study) or render(study, *shown))
    figures_of = page.figures_of
    monkeypatch.setattr(page, "figures_of", lambda *of: [f for f in figures_of(*of) if f[1].draw is plot.accuracy])

    def finish_again():
        made.clear()
        assert finish(folder, read_config(folder), Console()) == []
        assert ("(up to date)" in capsys.readouterr().out) is not bool(made)
        return bool(made)

    assert finish_again()
    return folder, finish_again


def test_a_report_of_the_same_files_is_left_as_it_is(finished):
    folder, finish_again = finished
    times = up_to_date.stamps(folder)
    (folder / "export").mkdir()
    (folder / "export" / "results.md").write_text("not part of the report")
    assert not finish_again() and not finish_again()
    assert up_to_date.stamps(folder) == times
    assert {"report.html", "report/a 1/accuracy.csv", "report/accuracy.csv"} <= times.keys()


CHANGES = (
    lambda folder: (folder / "report.html").unlink(),
    lambda folder: (folder / "report" / "accuracy.csv").unlink(),
    lambda folder: (folder / "report" / "made_from.json").write_text("{"),
    lambda folder: shutil.copytree(folder / "b" / "base" / "seed0", folder / "b" / "base" / "seed2"),
    lambda folder: unfinish(folder, "b/base/seed1"),
    lambda folder: report.main([str(folder), "--arms=base"]),
    lambda folder: (file := folder / "report" / "made_from.json").write_text(
        file.read_text().replace(up_to_date.code(), "other code")
    ),
)


def test_whatever_changes_the_report_makes_it_again(finished):
    folder, finish_again = finished
    for change in CHANGES:
        change(folder)
        assert finish_again() and (folder / "report" / "accuracy.csv").exists()
        assert not finish_again()


def test_runs_without_anything_to_do(finished):
    """Finished and unchanged ones, unless one of their batch is not finished."""
    folder, _ = finished

    def run(setting, arm, seed):
        return SimpleNamespace(
            folder=folder / setting / arm / f"seed{seed}",
            name=RunName(f"{setting}/{arm}", seed),
            cell=SimpleNamespace(setting=setting, values={"rounds": 1, "stop_at_accuracy": 0.0}),
        )

    study = SimpleNamespace(folder=folder, runs=[run("b", "base", 0), run("b", "base", 1)])
    assert done_runs(study) == [0, 1]
    (study.runs[0].folder / "partition.npz").write_bytes(b"damaged")
    assert done_runs(study) == [1]
    study.runs.append(run("a 1", "base", 0))
    assert done_runs(study) == [0, 1, 2]  # of several settings, one without unfinished runs is left out
    (study.runs[1].folder / "together.json").write_text('[["b/base", 1], ["b/new", 0]]')
    assert done_runs(study) == [0, 2]
    (study.runs[2].folder / "summary.json").unlink()
    assert done_runs(study) == [0]
