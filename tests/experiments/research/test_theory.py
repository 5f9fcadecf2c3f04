"""The command that shows the theory of the papers: its numbers, its files, and what it rejects."""

import csv
import itertools

import numpy as np
import pytest

from experiments.research import theory, theory_feddecorr, theory_fedmr
from experiments.research.theory_records import Options
from fedjax_collapse.analysis.geometry import uniformity

ARMS = ("centralised", "FedAvg", "FedMR 0.01", "FedMR 0.1", "FedMR 1")
OPTIONS = Options(steps=40, seeds=2)


@pytest.fixture(scope="module")
def rates():
    return theory_feddecorr.rates(Options(steps=400, seeds=1))


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
    columns = theory_feddecorr.classes(OPTIONS)
    last = (columns["time"] == columns["time"].max()) & (columns["k"] == 1)
    ranks = columns["effective_rank"][last]
    assert columns["classes"][last].tolist() == [1, 2, 5, 10] and (np.diff(ranks) > 0).all()
    for number in (1, 2, 5):  # as many singular values grow as there are classes
        of_k = columns["sigma"][(columns["time"] == columns["time"].max()) & (columns["classes"] == number)]
        assert np.sum(of_k > 0.5) == number


def test_the_rank_of_the_gradient_matrix_falls_with_alpha():
    columns = theory_feddecorr.dirichlet(Options(steps=100, seeds=2))
    assert (columns["rank_of_G"] <= columns["classes"] + 1e-9).all()
    for name in ("rank_of_G", "rank"):
        means = [columns[name][columns["alpha"] == alpha].mean() for alpha in (0.01, 0.3, 10)]
        assert means == sorted(means) and means[-1] > 2 * means[0]


def test_both_sides_of_the_proposition():
    columns = theory_feddecorr.proposition(OPTIONS)
    np.testing.assert_allclose(columns["deviations"], columns["norm_minus_d"], rtol=1e-10)
    np.testing.assert_allclose(columns["feddecorr"], (columns["norm_minus_d"] + 16) / 256)
    assert np.corrcoef(columns["feddecorr"], columns["effective_rank"])[0, 1] < -0.9


def test_a_small_start_becomes_aligned_and_a_large_one_does_not():
    """Alignment of the singular values that have grown."""
    columns = theory_feddecorr.alignment(Options(steps=1, seeds=2))
    first, last = columns["step"] == 0, columns["step"] == columns["step"].max()
    assert columns["alignment"][first].mean() < 0.3
    small, large = (columns["scale"] == scale for scale in (0.1, 1.0))
    has_grown = columns["sigma"] > 2
    assert columns["alignment"][last & small & has_grown].min() > 0.95 and np.sum(last & small & has_grown) >= 10
    assert columns["alignment"][last & large & has_grown].mean() < 0.6


def test_the_classifiers_of_the_three_discs():
    """Each is the normal between the centres from which the paper derives it; averaging turns classes 2 and 3."""

    def unit(vector):
        return vector / np.linalg.norm(vector)

    centres, quarter = theory_fedmr.CENTRES, np.array([[0, -1], [1, 0]])
    for c, row in enumerate(theory_fedmr.ALL_CLASSES):
        one, other = np.delete(centres, c, axis=0)
        normal = unit(quarter @ (one - other))
        np.testing.assert_allclose(row, normal * np.sign(row @ normal), atol=1e-12)
    for weights, (i, j) in zip(theory_fedmr.CLIENTS.values(), itertools.combinations(range(3), 2), strict=True):
        expected = np.zeros((3, 2))
        expected[i], expected[j] = unit(centres[i] - centres[j]), unit(centres[j] - centres[i])
        np.testing.assert_allclose(weights, expected, atol=1e-12)
    columns = theory_fedmr.discs(OPTIONS)
    mean = columns["classifier"] == "mean"
    np.testing.assert_allclose(columns["x"][mean], [1 / 3, -1 / 6, -1 / 6])
    np.testing.assert_allclose(columns["y"][mean], [0, (3**0.5 + 2) / 6, -(3**0.5 + 2) / 6], atol=1e-12)
    np.testing.assert_allclose(columns["turn"][mean], [0, 45, 45], atol=1e-5)
    np.testing.assert_allclose(columns["length"][mean], [1 / 3, 0.644, 0.644], atol=5e-4)


@pytest.mark.parametrize("name", ["all classes", "classes 1, 2", "mean"])
def test_a_margin_is_the_distance_at_which_another_class_wins(name):
    columns = theory_fedmr.discs(OPTIONS)
    chosen = columns["classifier"] == name
    weights = np.stack([columns["x"], columns["y"]], axis=1)[chosen]
    angles = np.linspace(0, 2 * np.pi, 3601)
    for c, margin in enumerate(columns["margin"][chosen]):
        circles = [
            theory_fedmr.CENTRES[c] + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            for radius in np.maximum(theory_fedmr.RADIUS + margin + np.array([-1e-3, 1e-3]), 0)
        ]
        inner, outer = (bool(np.all(np.argmax(circle @ weights.T, axis=1) == c)) for circle in circles)
        assert (inner, outer) == (margin > -theory_fedmr.RADIUS, False)


@pytest.mark.slow
def test_figures_and_numbers_are_written(tmp_path, capsys):
    assert theory.main([f"--out={tmp_path}", "--steps=40", "--seeds=1"]) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"{name}.{kind}" for name in theory.STUDIES for kind in ("svg", "pdf", "png", "csv")}
    with (tmp_path / "dirichlet.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(theory_feddecorr.ALPHAS) and float(rows[0]["rank"]) > 1
    with (tmp_path / "sphere.csv").open() as file:
        rows = list(csv.DictReader(file))
    points = {arm: np.array([[float(r[c]) for c in "xyz"] for r in rows if r["arm"] == arm]) for arm in ARMS}
    np.testing.assert_allclose([np.linalg.norm(of, axis=1) for of in points.values()], 1)
    assert uniformity(points["centralised"]) < uniformity(points["FedAvg"]) - 0.4  # on a narrow area
    assert {r["class"] for r in rows if r["arm"] == "FedAvg" and r["held"] == "1"} == {"0", "1"}
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
