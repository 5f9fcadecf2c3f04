"""The report of a study, from synthetic files in the layout of a study folder."""

import base64
import dataclasses
import hashlib
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from experiments.commands import report
from experiments.results.contents import PLOTS
from experiments.results.page import description, write_report
from experiments.results.plotting.figures import absolute_spectra, collapse_ratio, curves, measurements, spectra
from experiments.results.plotting.headline import headline
from experiments.results.plotting.partition_figure import draw_partition, partition_table
from experiments.results.plotting.timing_figure import timing
from experiments.results.reading import read_study
from experiments.results.tables.seconds import timing_table
from experiments.results.tables.table import accuracy_note, final_table, local_note
from fedjax_collapse.config.cells import CellName
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import merge_segments, write_segment
from fedjax_collapse.run.measurement import HEADLINES

ROOT = Path(__file__).resolve().parents[3]
SHOWN = [plot for plot in PLOTS if not plot.optional and plot.name != "score"]  # in a study of classification
STRENGTH = {"fedavg": 0.35, "feddecorr": 1.0}  # of the features: how little they collapse


def make_study(
    path: Path, arms=("fedavg", "feddecorr"), seeds=3, rounds=30, clients=10, classes=10, features=128
) -> Path:
    """Writes a study whose arms differ as in the paper: the second collapses less."""
    methods = {"feddecorr": {"strength": 0.1}}
    config = {
        "rounds": rounds,
        "seeds": list(range(seeds)),
        "clients": clients,
        "data": {"source": "digits", "test_fraction": 0.2},
        "partition": {"name": "dirichlet", "alpha": 0.1, "min_size": 10},
        "network": {"name": "mlp", "hidden": [256, features]},
        "training": {"epochs": 5, "batch_size": 32, "learning_rate": 0.05},
        "arms": {arm: {"methods": methods} if "decorr" in arm else {} for arm in arms},
    }
    provenance = {
        "command": "python experiments/launch.py --config=experiments/configs/quickstart.py",
        "git": "0123456789abcdef",
        "python": "3.11.7",
        "packages": {"jax": "0.10.2", "numpy": "2.4.6"},
        "devices": ["cpu:0"],
        "platform": "Linux-6.1-x86_64",
        "data_sha256": "ab" * 32,
    }
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "provenance.json").write_text(json.dumps(provenance))
    for arm in arms:
        for seed in range(seeds):
            rng = np.random.default_rng([seed, len(arm)])
            _make_run(path / arm / f"seed{seed}", rng, STRENGTH.get(arm, 0.6), rounds, clients, classes, features)
    (path / "summary.json").write_text(
        json.dumps({str(c): of for c, of in read_study(path).summary.items()}, allow_nan=False)
    )
    return path


def _make_run(folder: Path, rng, strength, rounds, clients, classes, features) -> None:
    folder.mkdir(parents=True)
    time = np.arange(1, rounds + 1)
    index = np.arange(1, features + 1)
    decay = (0.02 + 0.13 * (1.15 - strength) * (1 - np.exp(-time / 8)) + rng.normal(0, 0.001, rounds))[:, None]
    server = 4 * np.exp(-decay * index) * rng.lognormal(0, 0.1, (rounds, 1))
    server[:, -3:] = 0
    local = server * np.exp(-0.015 * (1.3 - strength) * index) * rng.lognormal(0, 0.1, (rounds, 1))
    accuracy = 0.1 + (0.5 + 0.35 * strength) * (1 - np.exp(-time / 6)) + rng.normal(0, 0.015, rounds)
    watched = int(rng.integers(clients))
    floor = 1e-12
    metrics = [
        {
            "round": int(r),
            "accuracy": float(accuracy[i]),
            "loss": float(2.3 * np.exp(-r / 10)),
            "effective_rank": _effective_rank(server[i]),
            "significant_dims": int(np.sum(np.log(np.maximum(server[i], floor)) > -2)),
            "R": float(np.mean(np.log(np.maximum(local[i], floor) / np.maximum(server[i], floor)))),
            "local_accuracy": float(accuracy[i] / 2),
            "local_effective_rank": _effective_rank(local[i]),
            "watched": watched,
            "train/task_loss": float(np.exp(-r / 6)),
            "train/feddecorr/correlation": None,
        }
        for i, r in enumerate(time)
    ]
    samples = 1437 * 5
    timing = [
        {
            "round": int(r),
            "compile": 4.2 if r == 1 else 0.0,
            "train": 0.35 / (0.5 + 0.5 * strength),
            "evaluate": 0.05,
            "samples": samples,
            "samples_per_second": samples / 0.35,
        }
        for r in time
    ]
    (folder / "summary.json").write_text(json.dumps({"headline": HEADLINES["server"], "local": "client 0"}))
    for name, rows in (("metrics", metrics), ("timing", timing)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    speed = rng.uniform(3, 12, clients)
    loss = 2.3 * np.exp(-time[:, None] / speed) + 0.01 * rng.random((rounds, clients))
    if clients > 2:
        loss[rng.random((rounds, clients)) < 0.2] = np.nan
    shares = rng.dirichlet(np.full(clients, 0.3), classes).T
    counts = np.floor(shares * 144).astype(int)
    steps = np.where(np.isfinite(loss), 25, 0)
    np.savez(folder / "clients.npz", round=time, task_loss=loss, steps=steps)
    np.savez(folder / "partition.npz", class_counts=counts)
    saved = time[4::5] if rounds >= 5 else time
    np.savez(folder / "spectra.npz", round=saved, server=server[saved - 1], local=local[saved - 1])


def _effective_rank(eigenvalues) -> float:
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def rewrite_rows(file: Path, change) -> None:
    """Replaces the rows of a .jsonl file by ``change`` of them."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


class Page(HTMLParser):
    """Tags, ids and visible text of a page; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.ids, self.words = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "quickstart")


@pytest.fixture(scope="module")
def page(study) -> str:
    return write_report(study).read_text(encoding="utf-8")


def test_spectra_are_normalised_or_absolute(tmp_path, capsys):
    study = make_study(tmp_path / "s", rounds=2, features=4)
    for option, ids in (([], "spectra"), (["--absolute"], "absolute-spectra")):
        assert report.main([str(study), *option]) == 0
        found = Page((study / "report.html").read_text(encoding="utf-8")).ids
        assert {"spectra", "absolute-spectra"} & set(found) == {ids}
    capsys.readouterr()
    normalised, absolute = (draw(read_study(study)).axes[0] for draw in (spectra, absolute_spectra))
    assert (normalised.get_yscale(), absolute.get_yscale()) == ("log", "linear")
    assert normalised.get_ylabel() == "share of the variance (%)" and normalised.get_ylim()[1] == 100


def test_page_is_complete_well_formed_and_self_contained(study, page):
    assert not [file for file in study.iterdir() if file.name.startswith(".report")]
    parsed = Page(page)
    text = " ".join(parsed.words)
    assert parsed.tags.count("svg") == parsed.tags.count("figcaption") == len(SHOWN)
    assert parsed.tags.count("script") == 1 and "link" not in parsed.tags and "iframe" not in parsed.tags
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page  # no other one would run
    assert "://" not in page and "fetch" not in script and "import" not in script
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(target.startswith(("#", "data:", "report/")) for target in targets)
    assert {target[1:] for target in targets if target.startswith("#")} <= set(parsed.ids)
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(parsed.ids)
    assert "2 arms (fedavg, feddecorr) ran for 30 rounds with 3 seeds (0, 1, 2) on the data set digits" in text
    assert "demonstration on small data (digits), not comparable" in text
    config = "training.learning_rate", "0.05", "arms.feddecorr.methods.feddecorr.strength", "packages.jax", "0.10.2"
    assert all(words in text for words in config)
    assert page.count('<span class="swatch" style="background:#') == 2 + 1  # and of the differences
    assert "Not recorded" not in text and "unfinished" not in text and "nan" not in text.lower()
    assert measurements(read_study(study)) is None and "measurements" not in parsed.ids and "Measurements" not in text


def test_arms_that_differ_from_the_description_are_told(tmp_path):
    """In data, clients, partition or network; what arms differ in otherwise is in the config below."""
    study = read_study(make_study(tmp_path / "s", seeds=1, rounds=2, features=4))
    assert "Other than that" not in description(study)
    arms = {
        "fedavg": {"clients": study.config["clients"], "training": {"epochs": 3}},
        "feddecorr": {"partition": {"alpha": 10.0}, "network": {"name": "moon_cnn"}, "methods": {"feddecorr": {}}},
        "absent": {"clients": 3},
    }
    text = description(dataclasses.replace(study, config=study.config | {"arms": arms}))
    assert text.endswith(". Other than that: feddecorr (partition.alpha 10.0, network.name moon_cnn).")


def test_final_table_is_mean_and_deviation_over_seeds(study):
    accuracies = [
        json.loads((study / "fedavg" / f"seed{k}" / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
        for k in range(3)
    ]
    expected = f"{100 * np.mean(accuracies):.2f} ± {100 * np.std(accuracies, ddof=1):.2f}"
    head, row, _ = final_table(read_study(study).summary)
    assert head == ["Arm", "Accuracy (%)", "Best", "Last 10", "Effective rank", "Significant dimensions", "R", "Seeds"]
    assert (row[0], row[1], row[-1]) == ("fedavg", expected, "3")
    one_seed = {
        "accuracy": {"mean": 0.5, "std": 0.0, "n": 1},
        "R": {"mean": None, "std": None, "n": 0},
        "effective_rank": None,
    }
    assert final_table({CellName("", "a"): one_seed})[1] == ["a", "50.00", "-", "-", "-", "-", "-", "1"]


def test_what_the_accuracy_is_of():
    fedavg, fedbn = ({"accuracy": {"of": of}} for of in ("server model", "personal models"))
    a, b = CellName("", "a"), CellName("", "b")
    same = accuracy_note({a: fedavg, b: fedavg})
    assert same.startswith("Accuracy: the headline, of the server model after the last round")
    assert "of the server model (a); of the personal models (b) after" in accuracy_note({a: fedavg, b: fedbn})
    assert accuracy_note({a: {}}).startswith("Accuracy: the headline, after")


def test_curves_and_spectra_average_over_seeds(study):
    record = read_study(study)
    _, mean, std = curves(record, ["R"]).by("arm", "metric")["feddecorr", "R"].columns()
    values = [[row["R"] for row in run.metrics] for run in record.of_arm("feddecorr")]
    np.testing.assert_allclose(mean, np.mean(values, axis=0))
    np.testing.assert_allclose(std, np.std(values, axis=0, ddof=1))
    ends = np.array([run.spectra["local"][-1] for run in record.of_arm("feddecorr")])
    last, _, _, local = absolute_spectra.select(record).by("arm")["feddecorr"].columns()
    assert set(last) == {30}
    np.testing.assert_allclose(local, np.log(np.maximum(ends, 1e-12)).mean(axis=0))
    *_, local = spectra.select(record).by("arm")["feddecorr"].columns()
    shares = 100 * ends / ends.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(local, np.exp(np.log(np.maximum(shares, 1e-10)).mean(axis=0)))
    assert 90 < local.sum() < 100  # of a geometric mean
    assert not curves(record, ["unknown"]).rows


def test_figures_leave_no_global_state_and_keep_arm_colours(study):
    record = read_study(study)
    for draw in (*(plot.draw for plot in SHOWN), headline):
        assert draw(record) is not None
    colours = [
        [line.get_color() for line in figure.legends[0].get_lines()[:2]]
        for figure in (draw(record) for draw in (*(plot.draw for plot in SHOWN[:3]), headline))
    ]
    assert all(pair == colours[0] for pair in colours) and len(set(colours[0])) == 2
    code = "import sys, experiments.results; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_time_that_runs_share_is_said_to_be_shared(tmp_path):
    path = make_study(tmp_path / "study", arms=("alone", "together"), seeds=2, rounds=2)
    for arm, number in (("alone", 1), ("together", 4)):
        for file in path.glob(f"{arm}/*/timing.jsonl"):
            rewrite_rows(file, lambda rows, number=number: [row | {"shared_by": number} for row in rows])
    seconds_axes, *_ = timing(read_study(path)).axes
    assert [tick.get_text() for tick in seconds_axes.get_yticklabels()] == ["alone", "together\n1/4 of shared time"]


def test_beside_every_row_of_the_partition_stand_its_size_classes_and_entropy():
    counts = np.array([[8, 0, 0, 0], [3, 3, 0, 0], [1, 1, 1, 1]])
    entropies = [0, math.log(2), math.log(4)]
    cells, *panels = draw_partition({"class_counts": counts}, "seed 0").axes[:4]
    assert cells.get_ylim() == (2.5, -0.5)
    for axes, values, written in zip(
        panels,
        ([8, 6, 4], [1, 2, 4], entropies),
        (["8", "6", "4"], ["1", "2", "4"], ["0.00", "0.69", "1.39"]),
        strict=True,
    ):
        assert axes.get_ylim() == cells.get_ylim()
        lengths, edges, _ = axes.patches[0].get_data()
        np.testing.assert_allclose(lengths, np.insert(np.array(values, float), [1, 2], 0))  # gaps between the bars
        np.testing.assert_allclose(edges, [-0.4, 0.4, 0.6, 1.4, 1.6, 2.4])
        assert [text.get_text() for text in axes.texts] == written
    assert [[line.get_xdata()[0] for line in axes.lines] for axes in panels] == [[], [4], [math.log(4)]]
    many = draw_partition({"class_counts": np.ones((100, 200), int)}, "seed 0").axes[:4]
    assert not any(axes.texts for axes in many) and 3 <= len(many[0].get_yticks()) <= 13


@pytest.mark.usefixtures("unrendered")
def test_the_table_has_a_row_for_every_different_partition(tmp_path):
    study = make_study(tmp_path / "s", rounds=1, features=4)
    even, own = np.full((2, 4), 3), np.diag([5, 1])
    for file in study.glob("*/seed*/partition.npz"):
        np.savez(file, class_counts=own if file.parent.name == "seed2" else even)
    np.savez(study / "feddecorr" / "seed0" / "partition.npz", class_counts=own)
    (study / "feddecorr" / "seed1" / "partition.npz").unlink()
    both = -(5 * math.log(5 / 6) + math.log(1 / 6)) / 6
    assert partition_table(read_study(study))[1:] == [
        ["fedavg", "0, 1", "12", "12", "4 of 4", f"{math.log(4):.3f}", f"0.000 of {math.log(4):.3f}"],
        ["all", "0, 2", "1 to 5", "3", "1 of 2", "0.000", f"{both:.3f} of {both:.3f}"],
    ]
    text = " ".join(Page(write_report(study).read_text(encoding="utf-8")).words)
    assert "Mutual information" in text and f"{both:.3f} of {both:.3f}" in text
    for file in study.glob("*/seed*/partition.npz"):
        file.unlink()
    text = " ".join(Page(write_report(study).read_text(encoding="utf-8")).words)
    assert text.count("Not recorded in this study.") == 1 and "Median size" not in text


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_has_not_ended_is_drawn_as_far_as_it_is_saved(tmp_path):
    """Its arrays are in segments; of a finished run that continues, in a file and segments."""
    study = make_study(tmp_path / "s", arms=("only",), seeds=2, rounds=6, features=4)
    whole = read_study(study)
    for seed, ends in ((0, [2, 4, 6]), (1, [4, 6])):
        for kind in ("clients", "spectra"):
            file = study / "only" / f"seed{seed}" / f"{kind}.npz"
            arrays = dict(np.load(file))
            file.unlink()
            for first, last in zip([0, *ends], ends, strict=False):
                keep = (arrays["round"] > first) & (arrays["round"] <= last)
                if keep.any():
                    part = {name: values[keep] for name, values in arrays.items()}
                    write_segment(file.parent, kind, part)
                    if seed and first == 0:
                        merge_segments(file.parent, kind, part)
    for run, same in zip(read_study(study).runs, whole.runs, strict=True):
        for found, expected in ((run.clients, same.clients), (run.spectra, same.spectra)):
            assert found.keys() == expected.keys() and found
            assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)
    assert Page(write_report(study).read_text(encoding="utf-8")).tags.count("svg") == len(SHOWN)


def measured_study(path: Path) -> Path:
    """The second arm measures two numbers more, one of which is null at times, and a list, which is no number."""
    study = make_study(path, rounds=12, features=4)
    for file in study.glob("feddecorr/seed*/metrics.jsonl"):
        seed = int(file.parent.name[-1])
        own = [{"measured/nc1": seed + 0.5, "measured/<gap>": None, "measured/list": [1, 2]}] * 11
        own += [{"measured/nc1": seed + 1.5, "measured/<gap>": 1e-7, "measured/list": [1, 2]}]
        rewrite_rows(file, lambda rows, own=own: [row | more for row, more in zip(rows, own, strict=True)])
    (study / "summary.json").unlink()
    return study


@pytest.mark.usefixtures("unrendered")
def test_a_measurement_is_drawn_and_tabulated_under_its_name(tmp_path):
    study = measured_study(tmp_path / "s")
    record = read_study(study)
    assert record.measurements == ("measured/nc1", "measured/<gap>")
    summary = record.summary["", "feddecorr", ""]
    assert summary["measured/nc1"] == {"mean": 2.5, "std": 1.0, "n": 3} and "measured/list" not in summary
    head, fedavg, feddecorr = final_table(record.summary)
    assert head[-3:] == ["nc1", "<gap>", "Seeds"] and head[-4] == "R"
    assert fedavg[-3:-1] == ["-", "-"] and feddecorr[-3:-1] == ["2.5 ± 1", "1e−07 ± 0"]
    figure = measurements(record)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["nc1", "<gap>"]
    assert [[len(line.get_xdata()) for line in axes.lines] for axes in figure.axes] == [[12], [1]]
    low, high = figure.axes[0].collections[0].get_datalim(figure.axes[0].transData).intervaly
    assert (low, high) == (0.5, 3.5)  # mean and deviation of 0.5, 1.5, 2.5, and of 1.5, 2.5, 3.5
    parsed = Page(write_report(study).read_text(encoding="utf-8"))
    assert parsed.tags.count("svg") == len(SHOWN) + 1 and "measurements" in parsed.ids
    assert "Measurements" in parsed.words and "<gap>" in parsed.words


@pytest.mark.usefixtures("unrendered")
def test_the_score_of_a_task_without_accuracy_is_drawn_in_its_place(tmp_path):
    study = make_study(tmp_path / "s", rounds=2)

    def scored(rows):
        return [{"recall_at_5" if name == "accuracy" else name: value for name, value in row.items()} for row in rows]

    for file in study.glob("*/*/metrics.jsonl"):
        rewrite_rows(file, scored)
    parsed = Page(write_report(study).read_text(encoding="utf-8"))
    assert parsed.tags.count("svg") == len(SHOWN) and "score" in parsed.ids and "accuracy" not in parsed.ids
    axes, *_ = headline(read_study(study)).axes
    assert axes.get_title(loc="left") == "recall at 5 (%)" and len(axes.lines) == 8  # three seeds and their mean, twice


@pytest.mark.usefixtures("unrendered")
def test_of_several_watched_clients_there_are_mean_and_range(tmp_path):
    """In place of R of one of them; the note says whose it is."""
    study = make_study(tmp_path / "s", seeds=2, rounds=3, features=4)
    for file in study.glob("*/seed*/metrics.jsonl"):
        own = {"R_mean": 0.5 + int(file.parent.name[-1]), "R_min": -1.0, "R_max": 2.0}
        own |= {f"local_effective_rank_{kind}": value for kind, value in (("mean", 7), ("min", 6), ("max", 9))}
        rewrite_rows(file, lambda rows, own=own: [row | own for row in rows])
    (study / "summary.json").unlink()
    record = read_study(study)
    head, row, _ = final_table(record.summary)
    assert head[5:-1] == [
        *("Significant dimensions", "R, mean over clients", "R, lowest", "R, highest"),
        *(f"Local effective rank, {what}" for what in ("mean over clients", "lowest", "highest")),
    ]
    assert row[6:-1] == ["1.000 ± 0.707", "−1.000 ± 0.000", "2.000 ± 0.000", "7.0 ± 0.0", "6.0 ± 0.0", "9.0 ± 0.0"]
    (line,) = collapse_ratio(record).axes[0].lines[:1]
    assert list(line.get_ydata()) == [1.0, 1.0, 1.0]
    for file in study.glob("*/seed*/summary.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"local": "clients 0, 3"}))
    note = local_note(read_study(study).summary)
    assert note.startswith("R and all else that is local: of clients 0, 3: the mean over them,")
    assert note in write_report(study).read_text(encoding="utf-8")


@pytest.mark.usefixtures("unrendered")
def test_seconds_and_memory_of_a_round(study, tmp_path):
    """Medians over rounds; neither those that compile nor the first count; per client that trained."""
    copy = make_study(tmp_path / "s", arms=("only",), seeds=1, rounds=6, features=4)
    folder = copy / "only" / "seed0"
    times = [(1, 9.0, 5.0), (2, 8.0, 0.0), (4, 4.0, 0.0), (5, 50.0, 3.0), (6, 1.0, 0.0)]
    sizes = {"round_bytes": 3 * 2**20, "stored_bytes": None, "shared_by": 2}
    rows = [dict(round=r, train=train, compile=c, evaluate=0.5, **sizes) for r, train, c in times]
    rewrite_rows(folder / "timing.jsonl", lambda _: rows)
    rewrite_rows(folder / "metrics.jsonl", lambda rows: [row for row in rows if row["round"] != 3])
    steps = np.zeros((6, 10), int)
    steps[:, :4] = 1
    steps[3, :8] = 1  # round 4: eight clients
    np.savez(folder / "clients.npz", round=np.arange(1, 7), task_loss=np.ones((6, 10)), steps=steps)
    head, row = timing_table(read_study(copy))
    assert head[3:5] == ["Seconds per round", "per client"]
    # rounds 2; 3 and 4; 6: 8, 2, 1 seconds, and 8/4, 4/12, 1/4 for a client
    assert row == ["only", "1 (2 as one program)", "4", "2", "0.333", "0.5", "3.0", "-"]
    assert "1 (2 as one program)" in write_report(copy).read_text(encoding="utf-8")
    assert len(timing_table(read_study(study))) == 3
    (folder / "timing.jsonl").unlink()
    assert timing_table(read_study(copy)) == []


@pytest.mark.usefixtures("unrendered")
def test_every_start_of_a_study_is_shown(tmp_path):
    """The first in full, a later one where it differs; the file of an older version is that of one start."""
    study = make_study(tmp_path / "s", arms=("only",), seeds=1, rounds=1, features=4)
    (first,) = read_study(study).starts
    assert "Start 1" not in write_report(study).read_text(encoding="utf-8")
    second = first | {"git": "fedcba9876543210", "started": "2026-01-02T03:04:05+00:00"}
    second.pop("platform")
    (study / "provenance.json").write_text(json.dumps({"starts": [first, second]}))
    assert read_study(study).starts == (first, second)
    words = [word.strip() for word in Page(write_report(study).read_text(encoding="utf-8")).words if word.strip()]
    shown = words[words.index("Environment") + 1 :]
    assert shown[0] == "Start 1 of 2" and shown[1:3] == ["command", first["command"]]
    later = shown[shown.index("Start 2 of 2: what differs from the one before") + 1 :]
    assert later == ["git", second["git"], "started", second["started"], "platform", "-"]


def test_arms_are_shown_as_the_config_declares_them(tmp_path):
    """Also those that a summary has and no run, and whatever the order in the summary is."""
    arms = ("zeta", "alpha", "mid")
    study = make_study(tmp_path / "s", arms=arms, seeds=1, rounds=1, features=4)
    for file in (study / "zeta" / "seed0").iterdir():
        file.unlink()
    summary = json.loads((study / "summary.json").read_text())
    (study / "summary.json").write_text(json.dumps(dict(sorted(summary.items()))))
    assert read_study(study).arms == ("alpha", "mid") and tuple(map(str, read_study(study).summary)) == arms
    assert [row[0] for row in final_table(read_study(study).summary)[1:]] == list(arms)


@pytest.mark.parametrize("arms, clients, classes", [(1, 1, 10), (1, 100, 100), (9, 10, 10)])
def test_one_seed_one_round_and_other_sizes(tmp_path, arms, clients, classes):
    names = tuple(f"arm {i}, with a name" for i in range(arms))
    study = make_study(tmp_path / "s", arms=names, seeds=1, rounds=1, clients=clients, classes=classes, features=4)
    page = write_report(study).read_text(encoding="utf-8")
    assert Page(page).tags.count("svg") == len(SHOWN)
    assert "±" not in "".join(re.findall(r"<td>.*?</td>", page))


@pytest.mark.usefixtures("unrendered")
def test_missing_and_unfinished_parts(tmp_path):
    study = make_study(tmp_path / "s", rounds=6, features=8)
    for file in study.glob("*/seed*/spectra.npz"):
        file.unlink()
    for name in ("clients.npz", "timing.jsonl"):
        (study / "fedavg" / "seed0" / name).unlink()
    rewrite_rows(study / "fedavg" / "seed1" / "metrics.jsonl", lambda rows: rows[:2])
    (study / "fedavg" / "seed1" / "summary.json").unlink()
    rewrite_rows(
        study / "fedavg" / "seed2" / "metrics.jsonl", lambda rows: [row | {"R": None, "loss": None} for row in rows]
    )
    for file in (study / "feddecorr" / "seed2").iterdir():
        file.unlink()
    (study / "summary.json").unlink()
    (study / "provenance.json").unlink()
    text = " ".join(Page(write_report(study).read_text(encoding="utf-8")).words)
    assert "fedavg, seed 1: unfinished, round 2 of 6; not in the tables." in text
    assert "feddecorr: results of 2 of 3 seeds." in text
    assert text.count("Not recorded in this study.") == 2  # spectra, environment
    rows = final_table(read_study(study).summary)
    assert [row[-1] for row in rows[1:]] == ["2", "2"] and "±" not in rows[1][6]
    rows = final_table(read_study(study).with_unfinished().summary)
    assert [(row[0], row[-1]) for row in rows[1:]] == [
        ("fedavg", "2"), ("feddecorr", "2"), ("fedavg (unfinished: round 2 of 6)", "1")
    ]  # fmt: skip


def test_all_null(tmp_path):
    study = make_study(tmp_path / "s", arms=("only",), seeds=2, rounds=2, features=4)
    for file in study.glob("only/seed*/*.jsonl"):
        rewrite_rows(file, lambda rows: [dict.fromkeys(row) | {"round": row["round"]} for row in rows])
    for file in study.glob("only/seed*/clients.npz"):
        np.savez(file, round=[1, 2], task_loss=np.full((2, 3), np.nan))
    for file in study.glob("only/seed*/partition.npz"):
        np.savez(file, class_counts=np.zeros((3, 2), int))
    for file in study.glob("only/seed*/spectra.npz"):
        np.savez(file, round=[2], server=np.full((1, 4), np.nan), local=np.full((1, 4), np.nan))
    (study / "summary.json").write_text('{"only": {"accuracy": {"mean": null, "std": null, "n": 0}}}')
    Page(write_report(study).read_text(encoding="utf-8"))


def test_everything_is_escaped(tmp_path):
    arm = "a<b>&'\"$x_1$ --><i>"
    study = make_study(tmp_path / "<u>&", arms=(arm,), seeds=1, rounds=2, features=4)
    config = json.loads((study / "config.json").read_text())
    config["data"]["source"] = "digits<script>alert(1)</script>"
    config["<b>"] = "<script>"
    summary = json.loads((study / "summary.json").read_text())
    summary[arm]["failed"] = {"seed1": "<script>alert(2)</script> <b>"}
    (study / "summary.json").write_text(json.dumps(summary))
    (study / "config.json").write_text(json.dumps(config))
    (study / "provenance.json").write_text('{"<b>": ["<script>"]}')
    html = write_report(study).read_text(encoding="utf-8")
    tags = Page(html).tags
    assert "&lt;script&gt;alert(2)" in html
    assert not {"b", "u", "i"} & set(tags) and tags.count("script") == 1
    assert not set("<>&'\"") & set("".join(re.findall(r'href="report/([^"]*)"', html)))


def test_a_round_written_twice_counts_once_and_a_last_line_cut_short_is_left_out(tmp_path):
    study = make_study(tmp_path / "s", arms=("only",), seeds=1, rounds=3, features=4)
    file = study / "only" / "seed0" / "metrics.jsonl"
    rewrite_rows(file, lambda rows: [*rows, rows[1] | {"accuracy": 0.25}])
    file.write_text(file.read_text() + '{"round": 4, "accur')
    metrics = read_study(study).runs[0].metrics
    assert [row["round"] for row in metrics] == [1, 2, 3] and metrics[1]["accuracy"] == 0.25


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.json", "{"),
        ("config.json", None),
        ("only/seed0/metrics.jsonl", "{}\n"),
        ("only/seed0/metrics.jsonl", "\n"),
        ("only/seed0/metrics.jsonl", '{"round"\n{"round": 1}\n'),
        ("only/seed0/clients.npz", "no zip"),
        ("only/seed0/spectra.npz", ""),
        ("only/seed0/spectra.npz", {"round": [1], "server": np.ones((1, 4)), "local": np.ones((1, 5))}),
        ("only/seed1/spectra.npz", {"round": [1], "server": np.ones((1, 5)), "local": np.ones((1, 5))}),
        ("only/seed0/clients.npz", {"round": [2, 1], "task_loss": np.ones((2, 3)), "steps": np.ones((2, 3))}),
        ("only/seed0/clients.npz", {"round": [1], "epoch/1/score": np.ones((1, 3))}),
        ("only/seed0/partition.npz", {"class_counts": np.ones((3, 2), int), "domain_counts": np.ones((3, 2), int)}),
        ("only/seed0/metrics.jsonl", '{"round": 1, "accuracy": NaN}\n'),
        ("config.json", '{"rounds": 1e999}'),
        ("config.json", '{"paper": {"source": "x", "comparable": true, "values": {"only": "high"}}}'),
        ("config.json", '{"data": ' + '{"a": ' * 80 + "1" + "}" * 81),
        ("config.json", '{"data": "\\ud800"}'),
    ],
)
def test_broken_input_is_one_line_that_names_the_file(tmp_path, name, content):
    study = make_study(tmp_path / "s", arms=("only",), seeds=2, rounds=2, features=4)
    if content is None:
        (study / name).unlink()
    elif isinstance(content, dict):
        np.savez(study / name, **content)
    else:
        (study / name).write_text(content)
    with pytest.raises(UserError) as error:
        write_report(study)
    assert "\n" not in str(error.value)
    assert str(study) in str(error.value) and Path(name).name in str(error.value)
    assert not (study / "report.html").exists()


@pytest.mark.slow
def test_command_line_rewrites_reports_and_names_bad_folders(study, page, tmp_path):
    (study / "report.html").unlink()
    command = [sys.executable, "-m", "fedjax_collapse.command", "report", str(tmp_path / "none"), str(study)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'none'}: no such folder; expected the folder of a study\n"
    assert "Significant dimensions" in done.stdout and "feddecorr" in done.stdout
    assert (study / "report.html").read_text(encoding="utf-8") == page
