"""What figures show: means over seeds, late rounds, sweeps, names, features on a sphere; on a page and in a column."""

import itertools

import numpy as np
import pandas as pd
import pytest
from conftest import check
from study_files import configure, rewrite, write_arms, write_cells
from test_report import make_study

from fedjax_collapse import Federation
from fedjax_collapse.config.cells import Arm
from fedjax_collapse.data.domains import Domains
from fedjax_collapse.results import load, plot
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.contents import MOST_ARMS, PLOTS, arms_note, shown
from fedjax_collapse.results.plot.features import project
from fedjax_collapse.results.plot.partition import draw_partition, partition_table
from fedjax_collapse.results.plot.rounds import curves
from fedjax_collapse.results.plot.spectrum import spectra_of


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return load(make_study(tmp_path_factory.mktemp("figures") / "study", seeds=2, rounds=20, features=16))


def test_ten_arms_are_told_apart_by_anyone():
    """By colours, and by their markers without any."""
    for count in (10, 24):
        colours = drawing.colours_for({arm: Arm({}, arm, {}) for arm in map(str, range(count))})
        looks = pd.DataFrame([drawing.arm_line(colours, arm, 8) for arm in colours])[["color", "marker"]]
        assert not looks.duplicated().any() and (count > 10 or looks.nunique().tolist() == [10, 10])


def test_arms_of_a_sweep_have_colours_along_a_scale(tmp_path):
    """In the order of their values, also while one is missing; all others keep categorical ones."""
    folder = write_cells(tmp_path / "s", (), sweep={"training.strength": [1, 0.1]})
    colours = drawing.colours_of(load(folder))
    assert list(colours) == ["base", "decorr strength=0.1", "decorr strength=1"]
    assert colours["base"] == drawing.COLOURS[0] and not {*drawing.COLOURS} & {*list(colours.values())[1:]}
    figure = plot.accuracy(load(folder))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(colours)
    assert {line.get_color() for line in figure.axes[0].lines} == set(colours.values())
    for file in folder.glob("decorr strength=0.1/*/metrics.jsonl"):
        file.unlink()
    assert drawing.colours_of(load(folder)) == {arm: colours[arm] for arm in ("base", "decorr strength=1")}


def test_curves_and_spectra_average_over_seeds(study):
    rows = curves(study, ["accuracy", "unknown"]).query("arm == 'feddecorr'")
    values = [[row["accuracy"] for row in run.metrics] for run in study.of_arm("feddecorr")]
    np.testing.assert_allclose(rows["mean"], np.mean(values, axis=0))
    np.testing.assert_allclose(rows["std"], np.std(values, axis=0, ddof=1))
    ends = np.array([run.spectra["local"][-1] for run in study.of_arm("feddecorr")])
    absolute, relative = (spectra_of(study, of).query("arm == 'feddecorr'")["local"] for of in (True, False))
    np.testing.assert_allclose(absolute, np.log(np.maximum(ends, 1e-12)).mean(axis=0))
    shares = 100 * ends / ends.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(relative, np.exp(np.log(np.maximum(shares, 1e-10)).mean(axis=0)))


def test_late_rounds_are_enlarged(study, tmp_path):
    whole, late = plot.accuracy(study).axes
    assert late.get_xlim() == (15, 20) and whole.get_xlim()[0] < 2
    values = np.concatenate([line.get_ydata()[14:] for line in late.lines])
    low, high = late.get_ylim()
    assert low < values.min() and values.max() < high and high - low < 1.2 * np.ptp(values)
    assert len(plot.accuracy(load(make_study(tmp_path, rounds=11))).axes) == 1


def test_effective_rank_has_a_scale_of_shares_if_arms_have_equally_many_features(study, tmp_path):
    late = plot.effective_rank(study).axes[-1]
    (scale,) = late.child_axes
    late.figure.draw_without_rendering()
    np.testing.assert_allclose(scale.get_ylim(), 100 * np.array(late.get_ylim()) / 16)
    for arm, features in (("feddecorr", 8), ("fedavg", 16)):
        make_study(tmp_path / "s", (arm,), features=features)
    folder = configure(tmp_path / "s", arms={"fedavg": {}, "feddecorr": {}})
    assert load(folder).num_features == {"fedavg": 16, "feddecorr": 8}
    assert not plot.effective_rank(load(folder)).axes[-1].child_axes


def test_domains_and_measurements_have_panels(tmp_path):
    """Of a measurement of the server's model and of local ones only one, in which those of local ones are dashed."""
    folder = make_study(tmp_path, seeds=2, rounds=2)
    own = {"measured/nc1": 1.0, "measured/local_nc1": 2.0, "measured/<gap>": 3.0, "domain_accuracy/a<b": 0.5}
    rewrite(folder, "*/*/metrics.jsonl", lambda row, i, _: row | own | {"domain_accuracy/c": i / 2})
    first, second = plot.domains(load(folder)).axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("a<b", "c")
    assert first.lines[0].get_ydata().tolist() == [50, 50] and second.lines[1].get_ydata().tolist() == [0, 50]
    panels = plot.measurements(load(folder)).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["nc1", "<gap>"]
    assert [line.get_linestyle() for line in panels[0].lines] == ["-", "--"] * 2 and len(panels[1].lines) == 2
    assert plot.score(load(folder)) is plot.layer_nc1(load(folder)) is plot.head_spectra(load(folder)) is None


@pytest.mark.filterwarnings("error")
def test_a_sweep_is_drawn_against_its_first_key(tmp_path):
    """Arms without it are grey; R of several watched clients is their mean."""
    folder = write_cells(tmp_path / "s", ())
    rewrite(folder, "*/*/metrics.jsonl", lambda row, *_: row | {"R_mean": 10 * row["R"]})
    accuracy, _, collapse = plot.sweep(load(folder)).axes
    points = accuracy.containers[0].lines[0]
    assert points.get_xdata() == pytest.approx([0.1, 1]) and points.get_ydata() == pytest.approx([61, 71.5])
    assert accuracy.get_xscale() == "log" and accuracy.lines[-1].get_ydata() == pytest.approx([50.5] * 2)  # the base
    assert accuracy.lines[-1].get_color() == drawing.MUTE
    assert collapse.containers[0].lines[0].get_ydata() == pytest.approx([-10, -20])
    assert accuracy.get_xlim() == pytest.approx((10**-1.05, 10**0.05))
    for file in folder.glob("decorr strength=1/*/metrics.jsonl"):
        file.unlink()
    assert plot.sweep(load(folder)).axes[0].get_xlim() == pytest.approx((0, 0.2))


def test_many_arms_are_the_first_and_the_best(tmp_path):
    study = load(write_arms(tmp_path, {f"arm {i}": [i / 100] for i in range(MOST_ARMS + 3)}))
    assert list((few := shown(study)).arms) == ["arm 0", *(f"arm {i}" for i in range(4, MOST_ARMS + 3))]
    assert arms_note(study) == "Figures show 24 of 27 arms: the first, and the best by accuracy; tables show all."
    assert shown(few) is few and arms_note(few) == ""


def test_names_of_classes_and_domains_are_saved_and_shown():
    labels, of_domain = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    domains = Domains(("photo", "sketch"), of_domain, of_domain)
    images = np.zeros((4, 2, 2), np.uint8)
    given = dict(class_names=("cat", "dog", "$x$"), domains=domains)
    federation = Federation.from_arrays(images, labels, [[0, 1], [1, 2, 3]], images, labels, **given)
    arrays = federation.partition_arrays()
    assert arrays["class_names"].tolist() == ["cat", "dog", "$x$"]
    assert arrays["domain_counts"].tolist() == [[2, 0], [1, 2]]
    cells = draw_partition(arrays, "seed 0").axes[0]
    assert [text.get_text() for text in cells.get_xticklabels()] == ["cat", "dog", r"\$x\$"]
    assert [text.get_text() for text in cells.get_yticklabels()] == ["photo  0", "photo, sketch  1"]
    plain = Federation.from_arrays(images, labels, [[0, 1], [2, 3]], images, labels).partition_arrays()
    assert plain.keys() == {"class_counts", "class_names"}
    assert draw_partition(plain, "seed 0").axes[0].get_xlabel() == "class"


def test_beside_every_row_of_the_partition_stand_its_size_classes_and_entropy(tmp_path):
    counts = np.array([[8, 0, 0, 0], [3, 3, 0, 0], [1, 1, 1, 1]])
    cells, *panels = draw_partition({"class_counts": counts}, "seed 0").axes[:4]
    numbers = [8, 6, 4], [1, 2, 4], [0, np.log(2), np.log(4)]
    for axes, values, form in zip(panels, numbers, ("{:.0f}", "{:.0f}", "{:.2f}"), strict=True):
        assert axes.get_ylim() == cells.get_ylim() == (2.5, -0.5)
        assert all(line.get_xdata()[0] < axes.get_xlim()[1] for line in axes.lines)  # the largest possible value
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(list(values))
        assert [text.get_text() for text in axes.texts] == [form.format(value) for value in values]
    many = draw_partition({"class_counts": np.ones((100, 200), int)}, "seed 0").axes[:4]
    assert not any(axes.texts for axes in many) and 3 <= len(many[0].get_yticks()) <= 13
    folder = write_arms(tmp_path, {"fedavg": [0.5, 0.6], "feddecorr": [0.5, 0.6]})
    np.savez(folder / "feddecorr" / "seed0" / "partition.npz", class_counts=np.diag([5, 1]))
    both = -(5 * np.log(5 / 6) + np.log(1 / 6)) / 6
    assert partition_table(load(folder)).frame.to_numpy().tolist() == [
        ["all", "0, 1", "40", "40", "10 of 10", f"{np.log(10):.3f}", f"0.000 of {np.log(10):.3f}"],
        ["feddecorr", "0", "1 to 5", "3", "1 of 2", "0.000", f"{both:.3f} of {both:.3f}"],
    ]


def test_seconds_are_means_of_sums_over_rounds(tmp_path):
    make_study(tmp_path, seeds=2, rounds=20)
    own = dict(evaluate=1.0, samples=10)
    rewrite(tmp_path, "*/*/timing.jsonl", lambda row, _, seed: row | own | {"train": 2.0 + seed})
    rewrite(tmp_path, "feddecorr/*/timing.jsonl", lambda row, *_: row | {"shared_by": 4})
    seconds, speed = plot.timing(load(tmp_path)).axes
    assert [tick.get_text() for tick in seconds.get_yticklabels()] == ["fedavg", "feddecorr\n1/4 of shared time"]
    assert [[bar.get_width() for bar in bars] for bars in seconds.containers] == [[0, 0], [50, 50], [20, 20]]
    assert [bar.get_width() for bar in speed.patches] == [4, 4]
    assert [[text.get_text() for text in axes.texts] for axes in (seconds, speed)] == [["70.0"] * 2, ["4"] * 2]


def test_projection_to_the_sphere():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(50, 5)) * [5, 3, 2, 1e-3, 1e-3] + 100
    places = project(features)
    np.testing.assert_allclose(np.linalg.norm(places, axis=1), 1)
    centred = features[:, :3] - features[:, :3].mean(axis=0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    assert np.mean(np.abs(np.abs(places) - np.abs(expected))) < 0.1  # nearly those axes
    for _ in range(8):
        order, turn = rng.permutation(50), np.linalg.qr(rng.normal(size=(5, 5)))[0]
        np.testing.assert_allclose(project(features[order] @ turn), places[order], atol=1e-9)
    assert np.isnan(project(np.full((4, 3), np.nan))).all()
    flat = project(np.c_[features[:, :2], np.zeros((50, 3))])
    np.testing.assert_allclose(flat[:, 2], 0, atol=1e-12)  # a plane gives a circle
    assert project(np.ones((4, 2))).tolist() == [[0, 0, 0]] * 4


def test_spectra_of_all_watched_clients(tmp_path):
    """At the last round of the first seed, a line for each client of that round and the server's above them."""
    folder = make_study(tmp_path, rounds=2, features=3)
    assert plot.client_spectra(load(folder)) is None
    rows = np.random.default_rng(0).random((3, 2, 3))
    rows[1, 1], watched = np.nan, np.array([[0, 4], [4, -1]])  # one client in the last round
    for seed in range(2):
        arrays = dict(round=np.arange(1, 3), server=rows[2] + seed, local=rows[:2, 0], watched=watched)
        np.savez(folder / "fedavg" / f"seed{seed}" / "spectra.npz", clients=rows[:2], **arrays)
    (axes,) = plot.client_spectra(load(folder)).axes
    shares = [100 * of / of.sum() for of in (rows[2, 1], rows[1, 0])]
    np.testing.assert_allclose([of.get_ydata() for of in axes.lines], shares)
    assert plot.client_spectra.select(load(folder))["model"].unique().tolist() == ["server", "4"]
    np.savez(folder / "fedavg" / "seed0" / "spectra.npz", clients=rows[:2, :1], **arrays)
    check(r"'clients' has shape \(2, 1, 3\), expected \(2, 2, 3\)", plot.spectra, load(folder))


def test_losses_of_clients_are_rows(study):
    first, _, bar = plot.client_loss(study).axes
    cells = first.collections[0].get_array()
    expected = study.of_arm("fedavg")[0].clients["task_loss"].T
    np.testing.assert_array_equal(cells.mask, np.isnan(expected))
    np.testing.assert_allclose(cells.filled(np.nan), np.maximum(expected, np.nanmax(bar.get_ylim()) / 1e4))


def test_singular_values_of_the_classifier_over_rounds(tmp_path):
    """Means over seeds at rounds that all runs have, the later the darker."""
    folder, values, rng = make_study(tmp_path, seeds=2, rounds=8), {}, np.random.default_rng(0)
    for arm, seed in itertools.product(("fedavg", "feddecorr"), range(2)):
        values[arm, seed] = rng.random((8 - seed, 4 if arm == "fedavg" else 3))
        if (arm, seed) == ("fedavg", 1):
            values[arm, seed][3] = np.nan  # round 4 of a run that diverged
        arrays = {"round": np.arange(1, 9 - seed), "head/singular_values": values[arm, seed]}
        np.savez(folder / arm / f"seed{seed}" / "measurements.npz", **arrays)
    first, second = plot.head_spectra(load(folder)).axes
    assert [len(line.get_xdata()) for line in (*first.lines, *second.lines)] == [4] * 5 + [3] * 5
    assert [line.get_alpha() for line in first.lines] == sorted(line.get_alpha() for line in first.lines)
    assert plot.head_spectra.select(load(folder))["round"].unique().tolist() == [1, 2, 3, 6, 7]
    np.testing.assert_allclose(first.lines[-1].get_ydata(), np.mean([values["fedavg", s][6] for s in (0, 1)], axis=0))


def test_figures_of_files_fit_a_column(study):
    with drawing.for_column():
        drawn = {of: figure for of in PLOTS if (figure := of.draw(study)) is not None}
    assert len(drawn) == 9 and all(of.caption and of.title for of in drawn)
    for of, figure in drawn.items():
        figure.draw_without_rendering()
        assert figure.get_figwidth() == pytest.approx(drawing.COLUMN * (drawing.WIDE / drawing.WIDTH if of.wide else 1))
        for axes in figure.axes:
            assert all(
                text.get_fontsize() >= 5.8 for text in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels())
            )
    assert plot.accuracy(study).get_figwidth() == drawing.WIDTH  # afterwards that of the page


def test_settings_have_panels_and_other_figures_are_of_one(tmp_path):
    study = load(write_cells(tmp_path))
    assert [axes.get_title(loc="left") for axes in plot.accuracy(study).axes] == ["a 1", "b"]
    assert plot.accuracy(study).axes[1].lines[0].get_ydata() == pytest.approx([40.5, 50.5])
    check(r"has settings; expected .* such as study.of_setting\('a 1'\)", plot.partition, study)
    assert plot.partition(study.of_setting("b")) and plot.sweep(study) is None is not plot.sweep(study.of_setting("b"))
