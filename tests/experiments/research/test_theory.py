"""The command that shows the theory of collapse: its numbers, its files, and what it refuses."""

import csv

import numpy as np
import pytest

from experiments.research import theory

OPTIONS = theory.Options(steps=40, seeds=2)


@pytest.fixture(scope="module")
def rates():
    return theory.rates(theory.Options(steps=400, seeds=1))


def test_the_theorem_is_exact_at_the_start_and_its_balanced_form_always(rates):
    start = rates["time"] == 0
    np.testing.assert_allclose(rates["theorem"][start], rates["exact"][start], rtol=1e-10)
    np.testing.assert_allclose(rates["balanced"], rates["exact"], atol=1e-7)
    assert np.abs(rates["theorem"] - rates["exact"]).max() > 0.1
    assert start.sum() == 3 and rates["time"].max() == pytest.approx(0.4)


@pytest.mark.parametrize("k", [1, 3])
def test_the_rates_are_those_of_the_curves(rates, k):
    time, sigma, exact = (rates[name][rates["k"] == k] for name in ("time", "sigma", "exact"))
    assert np.trapezoid(exact, time) == pytest.approx(sigma[-1] - sigma[0], abs=0.02)


def test_fewer_classes_leave_fewer_dimensions():
    columns = theory.classes(OPTIONS)
    last = (columns["time"] == columns["time"].max()) & (columns["k"] == 1)
    ranks = columns["effective_rank"][last]
    assert columns["classes"][last].tolist() == [1, 2, 5, 10] and (np.diff(ranks) > 0).all()
    for number in (1, 2, 5):  # as many singular values grow as there are classes
        of_k = columns["sigma"][(columns["time"] == columns["time"].max()) & (columns["classes"] == number)]
        assert np.sum(of_k > 0.5) == number


def test_the_rank_of_the_gradient_matrix_falls_with_alpha():
    columns = theory.dirichlet(theory.Options(steps=100, seeds=2))
    assert (columns["rank_of_G"] <= columns["classes"] + 1e-9).all()
    for name in ("rank_of_G", "rank"):
        means = [columns[name][columns["alpha"] == alpha].mean() for alpha in (0.01, 0.3, 10)]
        assert means == sorted(means) and means[-1] > 2 * means[0]


def test_both_sides_of_the_proposition():
    columns = theory.proposition(OPTIONS)
    np.testing.assert_allclose(columns["deviations"], columns["norm_minus_d"], rtol=1e-10)
    np.testing.assert_allclose(columns["feddecorr"], (columns["norm_minus_d"] + 16) / 256)
    assert np.corrcoef(columns["feddecorr"], columns["effective_rank"])[0, 1] < -0.9


@pytest.mark.slow
def test_figures_and_numbers_are_written(tmp_path, capsys):
    assert theory.main([f"--out={tmp_path}", "--steps=40", "--seeds=1"]) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"{name}.{kind}" for name in theory.STUDIES for kind in ("svg", "pdf", "png", "csv")}
    with (tmp_path / "dirichlet.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(theory.ALPHAS) and float(rows[0]["rank"]) > 1
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed[:-1]] == list(theory.STUDIES) and printed[-1] == f"wrote {tmp_path}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out is missing"),
        (["--out=x", "--steps=0"], "--steps 0 is too small"),
        (["--out=x", "--figures=all"], "unrecognized arguments: --figures=all"),
        (["--out=x", "--steps=4"], "--steps=4: too few, balancedness is lost at t = "),
        (["--out=a_file/x", "--steps=40", "--seeds=1"], "--out=a_file/x: cannot be written to"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").write_text("")
    assert theory.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]
