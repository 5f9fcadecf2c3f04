"""What figures of a report show: late rounds, shares, names, features on a sphere; on a page and in a column."""

import csv
import itertools

import numpy as np
import pytest
from test_report import Page, make_study, rewrite_rows

from experiments.commands import report
from experiments.results.contents import PLOTS, plots_of
from experiments.results.page import write_report
from experiments.results.plotting import classifier_figure, drawing, embedding, figures, layer_figure
from experiments.results.plotting.client_spectra import client_spectra
from experiments.results.plotting.partition_figure import draw_partition
from experiments.results.reading import read_study
from experiments.results.selection import Selection
from fedjax_collapse import Federation
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.domains import Domains

TEN = tuple(f"arm {i}" for i in range(10))
# Machado et al. (2009): what protan, deutan and tritan see of linear RGB
SIGHT = (
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_study(make_study(tmp_path_factory.mktemp("figures") / "study", rounds=20, features=16))


@pytest.fixture(scope="module")
def page(study):
    return write_report(study.path).read_text(encoding="utf-8")


def lab(linear):
    """CIE L*a*b* of linear RGB [..., 3]."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / to_xyz.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


def test_ten_arms_are_told_apart_by_anyone():
    """By colour with every kind of sight, and by their markers without any."""
    colours = {arm: drawing.arm_colour(TEN, arm) for arm in TEN}
    looks = [drawing.arm_line(colours, arm, 8) for arm in TEN]
    assert len({look["marker"] for look in looks}) == len({look["color"] for look in looks}) == 10
    rgb = np.array([[int(look["color"][i : i + 2], 16) / 255 for i in (1, 3, 5)] for look in looks])
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    for sight in (np.eye(3), *map(np.array, SIGHT)):
        seen = lab(np.clip(linear @ sight.T, 0, 1))
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15
    many = [f"arm {i}" for i in range(24)]
    colours = {arm: drawing.arm_colour(many, arm) for arm in many}
    assert len({(look["color"], look["marker"]) for look in (drawing.arm_line(colours, arm, 8) for arm in many)}) == 24


def test_late_rounds_are_enlarged(study):
    whole, late = figures.accuracy(study).axes
    assert late.get_xlim() == (15, 20) and whole.get_xlim()[0] < 2
    values = np.concatenate([line.get_ydata()[14:] for line in late.lines])
    low, high = late.get_ylim()
    assert low < values.min() and values.max() < high and high - low < 1.2 * np.ptp(values)
    assert np.ptp(whole.get_ylim()) > 2 * (high - low)


def test_few_rounds_are_drawn_once(tmp_path):
    assert len(figures.accuracy(read_study(make_study(tmp_path / "s", rounds=11, features=4))).axes) == 1


def test_effective_rank_has_a_scale_of_shares(study):
    late = figures.effective_rank(study).axes[-1]
    (scale,) = late.child_axes
    late.figure.draw_without_rendering()
    np.testing.assert_allclose(scale.get_ylim(), 100 * np.array(late.get_ylim()) / 16)
    assert scale.get_ylabel() == "% of 16 features" and figures.rank_share(study) is None


@pytest.mark.usefixtures("unrendered")
def test_arms_with_other_numbers_of_features_are_compared_by_shares(tmp_path):
    folder = make_study(tmp_path / "s", rounds=3, features=16)
    for file in folder.glob("fedavg/seed*/spectra.npz"):
        arrays = dict(np.load(file))
        np.savez(file, round=arrays["round"], server=arrays["server"][:, :8], local=arrays["local"][:, :8])
    record = read_study(folder)
    assert record.num_features == {"fedavg": 8, "feddecorr": 16}
    assert not figures.effective_rank(record).axes[-1].child_axes
    shares = figures.rank_share(record).axes[0].lines
    means = figures.curves(record, ["effective_rank"]).by("arm", "metric")
    for line, (arm, number) in zip(shares[::2], record.num_features.items(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), 100 * means[arm, "effective_rank"].columns()[1] / number)
    ids = Page(write_report(folder).read_text(encoding="utf-8")).ids
    assert "rank-share" in ids


@pytest.mark.usefixtures("unrendered")
def test_accuracy_by_domain(tmp_path):
    folder = make_study(tmp_path / "s", rounds=2, features=4)
    for file in folder.glob("*/seed*/metrics.jsonl"):
        rewrite_rows(file, lambda rows: [row | {"domain_accuracy/a<b": 0.5, "domain_accuracy/c": None} for row in rows])
    record = read_study(folder)
    first, second = figures.domains(record).axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("a<b", "c")
    assert first.lines[0].get_ydata().tolist() == [50, 50] and not second.lines
    assert "domains" in Page(write_report(folder).read_text(encoding="utf-8")).ids


@pytest.mark.usefixtures("unrendered")
def test_training_loss_over_rounds(tmp_path):
    folder = make_study(tmp_path / "s", rounds=2, features=4, seeds=2)
    for file in folder.glob("*/seed*/metrics.jsonl"):
        loss = 1.0 + int(file.parent.name[-1]) if file.parts[-3] == "fedavg" else None
        rewrite_rows(file, lambda rows, loss=loss: [row | {"train/task_loss": loss} for row in rows])
    (curve,) = figures.training_loss(read_study(folder)).axes[0].lines
    assert curve.get_ydata().tolist() == [1.5, 1.5]
    assert "training-loss" in Page(write_report(folder).read_text(encoding="utf-8")).ids
    for file in folder.glob("*/seed*/metrics.jsonl"):
        rewrite_rows(file, lambda rows: [{k: v for k, v in row.items() if k != "train/task_loss"} for row in rows])
    assert figures.training_loss(read_study(folder)) is None


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


def rows_of(folder, figure):
    return list(csv.reader((folder / "report" / f"{figure}.csv").read_text(encoding="utf-8").splitlines()))


def test_the_numbers_of_every_figure_are_next_to_the_page(study, page):
    shown = [plot for plot in plots_of(study) if plot.draw(study) is not None]
    assert page.count(' download="') == len(shown) == 8
    assert all(f'href="report/{plot.name}.csv" download="{plot.name}.csv"' in page for plot in shown)
    heading, *rows = rows_of(study.path, "accuracy")
    assert heading == ["arm", "metric", "round", "mean", "std"] and len(rows) == 40
    last = figures.curves(study, ["accuracy"]).rows[-1]
    assert rows[20][:3] == ["feddecorr", "accuracy", "1"] and float(rows[39][3]) == pytest.approx(last[3], 1e-4)
    spectrum = rows_of(study.path, "spectra")
    assert len(spectrum) == 1 + 2 * 16
    assert float(spectrum[1][4]) == pytest.approx(figures.spectra.select(study).rows[0][4], 1e-4)
    losses = rows_of(study.path, "client-loss")
    assert losses[0][3:] == [f"client {i}" for i in range(10)] and len(losses) == 41
    assert any("" in row for row in losses)  # outside the cohort
    assert rows_of(study.path, "partition")[1][:3] == ["fedavg", "0", "0"] and len(rows_of(study.path, "timing")) == 3


def test_numbers_are_safe_for_a_spreadsheet_and_never_many():
    text = Selection(["h"], [["=cmd()", "+x", "-1", -1.5, float("nan"), 3, 'a,"<b>']]).as_csv()
    assert text == 'h\n\'=cmd(),\'+x,\'-1,-1.5,,3,"a,""<b>"\n'
    assert Selection(["h"], [["x"]] * 2_000_001).as_csv() == "" == Selection(["h"], []).as_csv()


def features_study(path, rng=None, local=True):
    """The second arm's features lie in a plane; clients 3 and 7 are watched, of which one is not in the cohort."""
    rng = rng or np.random.default_rng(0)
    folder = make_study(path, seeds=1, rounds=2, features=4)
    labels = np.repeat(np.arange(4), 10)
    for arm in ("fedavg", "feddecorr"):
        features = rng.normal(size=(2, 40, 6)) + labels[:, None]
        if arm == "fedavg":
            features[..., 2:] = 0
        of_clients = np.stack([features + 3, features, np.full_like(features, np.nan)], axis=1)
        np.savez(
            folder / arm / "seed0" / "measurements.npz", round=[1, 2], **{"f/features": features},
            **{"f/labels": np.stack([labels] * 2), "f/clients": [[3, 7, -1]] * 2, "f/local_features": of_clients},
        )  # fmt: skip
    return folder


def test_projection_to_the_sphere():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(50, 5)) * [5, 3, 2, 1e-3, 1e-3] + 100
    places = embedding.project(features)
    np.testing.assert_allclose(np.linalg.norm(places, axis=1), 1)
    centred = features[:, :3] - features[:, :3].mean(axis=0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    assert np.mean(np.abs(np.abs(places) - np.abs(expected))) < 0.1  # nearly those axes
    for _ in range(8):
        order, turn = rng.permutation(50), np.linalg.qr(rng.normal(size=(5, 5)))[0]
        np.testing.assert_allclose(embedding.project(features[order] @ turn), places[order], atol=1e-9)
    assert np.isnan(embedding.project(np.full((4, 3), np.nan))).all()
    flat = embedding.project(np.c_[features[:, :2], np.zeros((50, 3))])
    np.testing.assert_allclose(flat[:, 2], 0, atol=1e-12)  # a plane gives a circle
    assert embedding.project(np.ones((4, 2))).tolist() == [[0, 0, 0]] * 4


@pytest.mark.usefixtures("unrendered")
def test_spectra_of_all_watched_clients(tmp_path):
    """At the last round of the first seed, a line for each client of that round and the server's above them."""
    folder = make_study(tmp_path / "s", seeds=2, rounds=2, features=3)
    assert client_spectra(read_study(folder)) is None
    rows = np.random.default_rng(0).random((3, 2, 3))
    rows[1, 1], watched = np.nan, np.array([[0, 4], [4, -1]])  # one client in the last round
    for seed in range(2):
        arrays = dict(round=np.arange(1, 3), server=rows[2] + seed, local=rows[:2, 0], watched=watched)
        np.savez(folder / "fedavg" / f"seed{seed}" / "spectra.npz", clients=rows[:2], **arrays)
    (axes,) = client_spectra(record := read_study(folder)).axes
    shares = [100 * of / of.sum() for of in (rows[2, 1], rows[1, 0])]
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines], shares)
    heading, found, _ = client_spectra.select(record)
    assert heading == ("arm", "model", "index", "share") and {row[1] for row in found} == {"server", "4"}
    assert "client-spectra" in Page(write_report(folder).read_text(encoding="utf-8")).ids
    np.savez(folder / "fedavg" / "seed0" / "spectra.npz", clients=rows[:2, :1], **arrays)
    with pytest.raises(UserError, match=r"'clients' has shape \(2, 1, 3\), 'server' has \(2, 3\)"):
        read_study(folder)


@pytest.mark.usefixtures("unrendered")
def test_singular_values_of_the_classifier_over_rounds(tmp_path):
    """Means over seeds at rounds that all runs have, the later the darker; without them no figure."""
    folder = make_study(tmp_path / "s", seeds=2, rounds=8, features=4)
    assert classifier_figure.head_spectra(read_study(folder)) is None
    values = {}
    for arm, size in (("fedavg", 4), ("feddecorr", 3)):
        for seed in range(2):
            rounds = np.arange(1, 9 - seed)
            values[arm, seed] = np.random.default_rng(seed).random((len(rounds), size))
            arrays = {"round": rounds, "head/singular_values": values[arm, seed]}
            np.savez(folder / arm / f"seed{seed}" / "measurements.npz", **arrays)
    values["fedavg", 1][3] = np.nan  # round 4 of a run that diverged
    np.savez(folder / "fedavg" / "seed1" / "measurements.npz", round=np.arange(1, 8),
             **{"head/singular_values": values["fedavg", 1]})  # fmt: skip
    record = read_study(folder)
    first, second = classifier_figure.head_spectra(record).axes
    assert [len(line.get_xdata()) for line in (*first.lines, *second.lines)] == [4] * 5 + [3] * 5
    assert [line.get_alpha() for line in first.lines] == sorted(line.get_alpha() for line in first.lines)
    heading, rows, _ = classifier_figure.head_spectra.select(record)
    assert heading == ("arm", "round", "index", "singular value") and len(rows) == 5 * 4 + 5 * 3
    assert list(dict.fromkeys(row[1] for row in rows)) == [1, 2, 3, 6, 7]
    np.testing.assert_allclose(first.lines[-1].get_ydata(), np.mean([values["fedavg", s][6] for s in (0, 1)], axis=0))
    assert [row[3] for row in rows if row[:3] == ("feddecorr", 6, 2)] == [
        np.mean([values["feddecorr", s][5, 1] for s in (0, 1)])
    ]
    assert "head-spectra" in Page(write_report(folder).read_text(encoding="utf-8")).ids


def test_layers_over_rounds(tmp_path):
    """Two panels an arm: the mean over the watched clients that took part, and the server's model."""
    folder = make_study(tmp_path / "s", seeds=2, rounds=4, features=4)
    figure = layer_figure.over_layers("effective_rank", "effective rank", logarithmic=True)
    assert figure(read_study(folder)) is None
    rng = np.random.default_rng(0)
    server, local = 1 + rng.random((2, 4, 3)), 1 + rng.random((2, 4, 5, 3))
    local[:, :, 2] = np.nan
    for seed in range(2):
        arrays = {"l/effective_rank": server[seed], "l/local_effective_rank": local[seed]}
        arrays |= {"round": np.arange(1, 5), "l/received_nc1": server[seed]}
        np.savez(folder / "fedavg" / f"seed{seed}" / "measurements.npz", **arrays)
    record = read_study(folder)
    heading, rows, _ = figure.select(record)
    assert heading == ("arm", "round", "layer", "after training", "after averaging") and len(rows) == 4 * 3
    expected = np.nanmean(local[:, 1, :, 2]), server[:, 1, 2].mean()
    assert [row[3:] for row in rows if row[:3] == ("fedavg", 2, 3)] == [pytest.approx(expected)]
    panels = [axes for axes in figure(record).axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == ["fedavg, after training", "fedavg, after averaging"]
    np.testing.assert_allclose(panels[1].collections[0].get_array(), server.mean(axis=0).T)


@pytest.mark.slow
def test_features_are_drawn_from_what_was_saved(tmp_path):
    folder = features_study(tmp_path / "s")
    record = read_study(folder)
    depths = {arm: part.columns()[-1] for arm, part in embedding.sphere.select(record).by("arm").items()}
    assert list(depths) == ["fedavg", "feddecorr"] and np.abs(depths["fedavg"]).max() < 1e-9
    assert np.abs(depths["feddecorr"]).max() > 0.3
    clients, _, _ = embedding.tsne_clients.select(record).by("arm")["feddecorr"].columns()
    assert clients.tolist() == [3] * 10 + [7] * 10
    page = write_report(folder).read_text(encoding="utf-8")
    assert {"sphere", "tsne-classes", "tsne-clients"} <= set(Page(page).ids)
    rows = rows_of(folder, "sphere")
    assert rows[0] == ["arm", "class", "x", "y", "z"] and len(rows) == 81
    assert write_report(folder).read_text(encoding="utf-8") == page


@pytest.mark.usefixtures("unrendered")
def test_features_that_cannot_be_drawn_are_left_out(tmp_path):
    folder = features_study(tmp_path / "s")
    file = folder / "fedavg" / "seed0" / "measurements.npz"
    arrays = dict(np.load(file))
    arrays["f/features"][-1, 0, 0] = np.nan
    arrays["f/clients"][:], arrays["f/local_features"][:] = -1, np.nan
    np.savez(file, **arrays)
    (folder / "feddecorr" / "seed0" / "measurements.npz").unlink()
    record = read_study(folder)
    assert embedding.sphere(record) is None is embedding.tsne_clients(record)
    assert "sphere" not in Page(write_report(folder).read_text(encoding="utf-8")).ids


def test_figures_of_files_fit_a_column(study, tmp_path, monkeypatch):
    sizes, small = {}, {}

    def save(figure, path, dpi):
        figure.draw_without_rendering()
        sizes[path.stem] = figure.get_size_inches()[0]
        texts = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels())]
        small[path.stem] = min(text.get_fontsize() for text in texts)
        return path

    monkeypatch.setattr("experiments.results.export.save_figure", save)
    assert report.main([str(study.path), "--format=svg", f"--out={tmp_path}"]) == 0
    narrow = {plot.name for plot in PLOTS if not plot.wide} & set(sizes)
    assert len(narrow) > 4 and all(sizes[name] == pytest.approx(drawing.COLUMN) for name in narrow)
    assert max(sizes.values()) < 6.9 and min(small.values()) >= 5.8
    assert figures.accuracy(study).get_figwidth() == drawing.WIDTH  # afterwards that of the page


def test_a_page_has_its_own_ink_and_paper(page):
    style, rest = page.split("</style>", 1)
    for name in ("ink", "paper", "grid", "mute"):
        assert style.count(f"--{name}:") == 2 and f"var(--{name})" in rest  # light and dark
    assert "#000000" not in rest and drawing.PAPER not in rest


def test_the_config_is_folded(page):
    folded = page.index('<details class="section"><summary>Config</summary>')
    assert folded < page.index("training.learning_rate") < page.index("<summary>Environment</summary>")
