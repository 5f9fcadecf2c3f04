"""The report of a study, from files like those of a study, with made-up numbers; and of a run of a script."""

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import cases, one_line
from study_files import configure, rewrite, write_run

from experiments.commands import report
from fedjax_collapse import FedAvg, LocalTraining, simulate
from fedjax_collapse.core.round_arrays import merge_segments, write_segment
from fedjax_collapse.results import final_table, load, plot, write_report
from fedjax_collapse.results.page import description
from fedjax_collapse.results.plot.contents import PLOTS
from fedjax_collapse.results.tables import accuracy_note, local_note, timing_table

pytestmark = pytest.mark.usefixtures("unrendered")  # but for ``page``, which is made before

SHOWN = [plot for plot in PLOTS if not plot.optional and plot.name != "score"]  # in a study of classification


def make_study(path, arms=("fedavg", "feddecorr"), seeds=3, rounds=30, clients=10, classes=10, features=128) -> Path:
    """Writes a study with all that every run records; arms with FedDecorr collapse less, as in the paper."""
    for arm in arms:
        for seed in range(seeds):
            rng = np.random.default_rng(seed)  # arms have equal partitions
            _make_run(path / arm / f"seed{seed}", rng, 1 + ("decorr" in arm), rounds, clients, classes, features)
    start = {"command": "fedjax-collapse run quickstart", "git": "0123456789abcdef", "packages": {"jax": "0.10.2"}}
    (path / "provenance.json").write_text(json.dumps(start | {"devices": ["cpu:0"], "platform": "Linux-6.1-x86_64"}))
    parts = dict(data={"source": "digits", "test_fraction": 0.2}, partition={"name": "dirichlet", "alpha": 0.1})
    parts |= dict(network={"name": "mlp", "hidden": [features]}, training={"epochs": 5, "learning_rate": 0.05})
    of_arms = {arm: {"methods": {"feddecorr": {"strength": 0.1}}} if "decorr" in arm else {} for arm in arms}
    return configure(path, rounds=rounds, seeds=[*range(seeds)], clients=clients, arms=of_arms, **parts)


def _make_run(folder, rng, strength, rounds, clients, classes, features):
    time = np.arange(1, rounds + 1)
    server = rng.lognormal(0, 0.1, (rounds, 1)) * np.exp(-np.arange(features) * (1 + time[:, None]) / strength / 100)
    server[:, features // 2 :] = 0
    accuracy = 0.3 + 0.2 * strength * (1 - np.exp(-time / 6)) + rng.normal(0, 0.01, rounds)
    columns = dict(accuracy=accuracy, effective_rank=10 * strength - time / 6, significant_dims=time, R=-accuracy)
    columns |= {"local_effective_rank": 9 * strength - time / 6, "train/task_loss": np.exp(-time / 6)}
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    write_run(folder, [row | {"watched": 0, "train/feddecorr/correlation": None} for row in rows])
    (folder / "summary.json").write_text(json.dumps({"headline": "server model", "local": "client 0"}))
    times = dict(compile=0.0, train=0.35 / strength, evaluate=0.05, samples=7185)
    (folder / "timing.jsonl").write_text("".join(json.dumps(times | {"round": int(r)}) + "\n" for r in time))
    loss = np.exp(-time[:, None] / rng.uniform(3, 12, clients))
    loss[rng.random((rounds, clients)) < 0.2 * (clients > 2)] = np.nan
    np.savez(folder / "clients.npz", round=time, task_loss=loss, steps=np.where(np.isfinite(loss), 25, 0))
    np.savez(folder / "partition.npz", class_counts=rng.multinomial(144, rng.dirichlet([0.3] * classes), clients))
    saved = time[4::5] if rounds >= 5 else time
    np.savez(folder / "spectra.npz", round=saved, server=server[saved - 1], local=server[saved - 1] / 2)


class Page(HTMLParser):
    """Tags, ids and visible text of a page; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.ids, self.words = [], [], [], []
        self.feed(text)
        assert not self.open
        self.text = " ".join(self.words)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)


def page_of(study) -> Page:
    return Page(write_report(study).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "quickstart")


@pytest.fixture(scope="module")
def page(study) -> str:
    return write_report(study).read_text(encoding="utf-8")


def test_page_is_complete_well_formed_and_self_contained(study, page):
    assert not [file for file in study.iterdir() if file.name.startswith(".report")]
    parsed = Page(page)
    assert parsed.tags.count("svg") == parsed.tags.count("figcaption") == len(SHOWN)
    assert parsed.tags.count("script") == 1 and "link" not in parsed.tags and "iframe" not in parsed.tags
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page  # no other one would run
    assert "://" not in page and "fetch" not in script and "import" not in script
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert all(target.startswith(("#", "data:", "report/")) for target in targets)
    assert all((study / target).is_file() for target in targets if target.startswith("report/"))
    assert {target[1:] for target in targets if target.startswith("#")} <= set(parsed.ids)
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(parsed.ids)
    assert "2 arms (fedavg, feddecorr) ran for 30 rounds with 3 seeds (0, 1, 2) on the data set digits" in parsed.text
    assert "demonstration on small data (digits), not comparable" in parsed.text
    config = "training.learning_rate", "0.05", "arms.feddecorr.methods.feddecorr.strength", "packages.jax", "0.10.2"
    assert all(words in parsed.text for words in config) and "Study quickstart" in parsed.words
    assert page.count('<span class="swatch" style="background:#') == 2 + 1  # and of the differences
    assert not [word for word in ("Not recorded", "unfinished", " nan", "Measurements") if word in parsed.text]


def test_spectra_are_normalised_or_absolute(tmp_path):
    study = make_study(tmp_path / "s", rounds=2, features=4)
    for option, name in (([], "spectra"), (["--absolute"], "absolute-spectra")):
        assert report.main([str(study), *option]) == 0
        found = Page((study / "report.html").read_text(encoding="utf-8")).ids
        assert {"spectra", "absolute-spectra"} & set(found) == {name}
    scales = [draw(load(study)).axes[0].get_yscale() for draw in (plot.spectra, plot.absolute_spectra)]
    assert scales == ["log", "linear"]


def test_the_folder_of_a_run_has_a_report(federation, network, tmp_path, capsys):
    """As that of a study with one arm, which is named as the folder."""
    algorithm = FedAvg(LocalTraining(epochs=1, batch_size=16))
    options = dict(rounds=2, key=jax.random.key(0), progress=False)
    result = simulate(federation, network, algorithm, folder=tmp_path / "my run", **options)
    study = load(tmp_path / "my run")
    assert study.arms == ("my run",) and study.frame["round"].tolist() == [1, 2]
    assert study.frame["accuracy"].tolist() == [row["accuracy"] for row in result.metrics]
    assert final_table(study).rows[1][:2] == ["my run", f"{100 * result.metrics[-1]['accuracy']:.2f}"]
    assert f"of the {result.headline} after" in accuracy_note(study)
    assert "1 arm (my run) ran for 2 rounds with 1 seed (0)." in page_of(tmp_path / "my run").words
    assert report.main([str(tmp_path / "my run")]) == 0
    (tmp_path / "empty").mkdir()
    capsys.readouterr()
    for name, words in (("empty", "has neither config.json nor metrics.jsonl"), ("none", "no such folder")):
        assert report.main([str(tmp_path / name), str(tmp_path / "my run")]) == 2
        out, error = capsys.readouterr()
        assert error == f"error: {tmp_path / name}: {words}; expected the folder of a study or of a run\n"
        assert f"wrote {tmp_path / 'my run' / 'report.html'}" in out


def test_columns_without_a_number_and_deviations_of_one_run_are_left_out(study):
    whole = load(study)
    head, row, _ = (table := final_table(whole)).rows
    assert head == ["Arm", "Accuracy (%)", "Best", "Last 10", "Effective rank", "Significant dimensions", "R", "Seeds"]
    last = [100 * run.metrics[-1]["accuracy"] for run in whole.of_arm("fedavg")]
    assert row[:2] == ["fedavg", f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f}"]
    assert all("±" in cell for cell in row[1:-1]) and row[-1] == "3"
    assert table.notes[0].startswith("Accuracy: of the server model after the last round; best and mean")
    some = [run for run in whole.runs if run.seed == 0 or run.arm == "feddecorr"]
    runs = [dataclasses.replace(run, metrics=[row | {"R": np.nan} for row in run.metrics[:9]]) for run in some]
    head, row, other = final_table(dataclasses.replace(whole, runs=runs)).rows
    assert head == ["Arm", "Accuracy (%)", "Best", "Effective rank", "Significant dimensions", "Seeds"]
    assert "±" not in "".join(row) and row[-1] == "1" and all("±" in cell for cell in other[1:-1])


def test_a_run_that_has_not_ended_is_drawn_as_far_as_it_is_saved(tmp_path):
    """Its arrays are in segments; of a finished run that continues, in a file and segments."""
    study = make_study(tmp_path / "s", arms=("only",), seeds=2, rounds=4, features=4)
    whole = [(run.clients, run.spectra) for run in load(study).runs]
    for (seed, ends), kind in itertools.product(((0, (0, 1, 2, 4)), (1, (0, 2, 4))), ("clients", "spectra")):
        file = study / "only" / f"seed{seed}" / f"{kind}.npz"
        arrays = dict(np.load(file))
        file.unlink()
        for first, last in itertools.pairwise(ends):
            part = {name: values[first:last] for name, values in arrays.items()}
            write_segment(file.parent, kind, part)
            if seed and first == 0:
                merge_segments(file.parent, kind, part)
    for run, both in zip(load(study).runs, whole, strict=True):
        for found, expected in zip((run.clients, run.spectra), both, strict=True):
            assert found.keys() == expected.keys() and found
            assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)
    assert page_of(study).tags.count("svg") == len(SHOWN)


def test_a_measurement_is_drawn_and_tabulated_under_its_name(tmp_path):
    """The second arm has two numbers more, one of which is null at times, and a list, which is no number."""
    folder = make_study(tmp_path / "s", rounds=12, features=4)

    def own(row, i, seed):
        numbers = (seed + 1.5, 1e-7) if i == 11 else (seed, None)
        return row | dict(zip(("measured/nc1", "measured/<gap>", "measured/list"), (*numbers, [1]), strict=True))

    rewrite(folder, "feddecorr/*/metrics.jsonl", own)
    head, fedavg, feddecorr = final_table(load(folder)).rows
    assert head[-4:] == ["R", "nc1", "<gap>", "Seeds"]
    assert fedavg[-3:-1] == ["-", "-"] and feddecorr[-3:-1] == ["2.5 ± 1", "1e−07 ± 0"]
    assert [len(axes.lines[0].get_xdata()) for axes in plot.measurements(load(folder)).axes] == [12, 1]
    parsed = page_of(folder)
    assert parsed.tags.count("svg") == len(SHOWN) + 1 and "measurements" in parsed.ids and "<gap>" in parsed.words


def test_of_several_watched_clients_there_are_mean_and_range(tmp_path):
    """In place of R of one of them; the note says whose it is."""
    folder = make_study(tmp_path / "s", seeds=2, rounds=3, features=4)
    own = {"R_min": -1.0, "R_max": 2.0}
    own |= {f"local_effective_rank_{kind}": value for kind, value in (("mean", 7), ("min", 6), ("max", 9))}
    rewrite(folder, "*/*/metrics.jsonl", lambda row, _, seed: row | own | {"R_mean": 0.5 + seed})
    for file in folder.glob("*/*/summary.json"):
        file.write_text(json.dumps({"headline": "server model", "local": "clients 0, 3"}))
    study = load(folder)
    head, row, _ = final_table(study).rows
    kinds = ("mean over clients", "lowest", "highest")
    assert head[5:-1] == [f"{name}, {kind}" for name in ("R", "Local effective rank") for kind in kinds]
    assert row[5:-1] == ["1.000 ± 0.707", "−1.000 ± 0.000", "2.000 ± 0.000", "7.0 ± 0.0", "6.0 ± 0.0", "9.0 ± 0.0"]
    assert list(plot.collapse_ratio(study).axes[0].lines[0].get_ydata()) == [1.0, 1.0, 1.0]
    note = local_note(study)
    assert note.startswith("R and other values of local models: of clients 0, 3: the mean over them,")
    assert note in page_of(folder).words


def test_seconds_and_memory_of_a_round(study, tmp_path):
    """Medians over rounds; neither those that compile nor the first count; per client that trained."""
    copy = make_study(tmp_path / "s", arms=("only",), seeds=1, rounds=6, features=4)
    folder = copy / "only" / "seed0"
    times = [(1, 9.0, 5.0), (2, 8.0, 0.0), None, (4, 4.0, 0.0), (5, 50.0, 3.0), (6, 1.0, 0.0)]
    times = [row and dict(zip(("round", "train", "compile"), row, strict=True)) for row in times]
    sizes = dict(evaluate=0.5, round_bytes=3 * 2**20, stored_bytes=None, shared_by=2)
    rewrite(folder, "timing.jsonl", lambda row, i, _: times[i] and times[i] | sizes)
    rewrite(folder, "metrics.jsonl", lambda row, i, _: times[i] and row)
    steps = (np.arange(10) < [[4], [4], [4], [8], [4], [4]]).astype(int)  # eight clients in round 4
    np.savez(folder / "clients.npz", round=np.arange(1, 7), task_loss=np.ones((6, 10)), steps=steps)
    _, row = timing_table(load(copy)).rows
    # rounds 2; 3 and 4; 6: 8, 2, 1 seconds, and 8/4, 4/12, 1/4 for a client
    assert row == ["only", "1 (2 as one program)", "4", "2", "0.333", "0.5", "3.0", "-"]
    assert "1 (2 as one program)" in page_of(copy).words and len(timing_table(load(study)).rows) == 3
    (folder / "timing.jsonl").unlink()
    assert timing_table(load(copy)) is None


def test_missing_and_unfinished_parts(tmp_path):
    """Also an arm without a run has a row, in the order of the config."""
    folder = make_study(tmp_path / "s", arms=("none", "fedavg", "feddecorr"), rounds=6, features=8)
    lost = "none/seed*/*", "feddecorr/seed2/*", "fedavg/seed0/timing.jsonl", "fedavg/seed0/clients.npz"
    for pattern in (*lost, "*/seed*/spectra.npz", "*/seed*/partition.npz", "fedavg/seed1/summary.json", "prov*"):
        for file in folder.glob(pattern):
            file.unlink()
    rewrite(folder, "fedavg/seed1/metrics.jsonl", lambda row, i, _: row if i < 2 else None)
    rewrite(folder, "fedavg/seed2/metrics.jsonl", lambda row, *_: row | {"R": None})
    text = page_of(folder).text
    assert "fedavg, seed 1: unfinished, round 2 of 6; not in the tables." in text
    assert "feddecorr: results of 2 of 3 seeds." in text and "none: results of 0 of 3 seeds." in text
    assert text.count("Not recorded in this study.") == 3  # spectra, partition, environment
    rows = final_table(load(folder)).rows
    assert [(row[0], row[-1]) for row in rows[1:]] == [("none", "0"), ("fedavg", "2"), ("feddecorr", "2")]
    assert "±" not in rows[2][5] and "±" in rows[3][5] and set(rows[1][1:-1]) == {"-"}  # R of a single seed


def test_everything_is_escaped(tmp_path):
    arm = "a<b>&'\"$x_1$ --><i>"
    study = make_study(tmp_path / "<u>&", arms=(arm,), seeds=1, rounds=2, features=4)
    configure(study, data={"source": "digits<script>alert(1)</script>"}, **{"<b>": "<script>"})
    failed = {arm: {"failed": {"seed0": "finished since", "seed1": "<script>alert(2)</script> <b>"}}}
    (study / "summary.json").write_text(json.dumps(failed))
    (study / "provenance.json").write_text('{"<b>": ["<script>"]}')
    tags = Page(html := write_report(study).read_text(encoding="utf-8")).tags
    assert "Failed: &lt;script&gt;alert(2)" in html and "finished since" not in html
    assert not {"b", "u", "i"} & set(tags) and tags.count("script") == 1
    assert not set("<>&'\"") & set("".join(re.findall(r'href="report/([^"]*)"', html)))


ROWS = '{"round": 1, "accuracy": 0.1}\n{"round": 2, "accuracy": 0.1, "R": null, "measured/x": 1}\n'
ONES, COUNTS = np.ones((1, 4)), np.ones((3, 2), int)


@cases(
    ("config.json", None, "has neither config.json nor metrics.jsonl"),
    ("only/seed0/metrics.jsonl", '{"round"\n{"round": 1}\n', "line 1: not valid JSON"),
    ("only/seed0/metrics.jsonl", '{"round": 1, "accuracy": NaN}\n', "NaN is not a number"),
    ("only/seed0/metrics.jsonl", ROWS, "R is in only one of the rows of rounds 1 and 2"),
    ("only/seed0/spectra.npz", dict(round=[1], server=ONES, local=ONES[:, 1:]), "has shape (1, 3)"),
    ("only/seed1/spectra.npz", dict(round=[1], server=ONES[:, 1:], local=ONES[:, 1:]), "3 features"),
    ("only/seed0/clients.npz", {"round": [1], "epoch/1/score": ONES}, "task_loss among them"),
    ("only/seed0/partition.npz", dict(class_counts=COUNTS, domain_counts=COUNTS), "no array 'domain_names'"),
    ("only/seed0/summary.json", '{"accuracy": 1.0}', "has no headline"),
    ("config.json", '{"paper": {"source": "x", "comparable": true, "values": {"only": "high"}}}', "paper"),
    ("config.json", '{"data": ' + '{"a": ' * 80 + "1" + "}" * 81, "81 levels"),
)
def test_broken_input_is_one_line_that_names_the_file(name, content, words, tmp_path):
    study = make_study(tmp_path / "s", arms=("only",), seeds=2, rounds=2, features=4)
    if content is None:
        (study / name).unlink()
    elif isinstance(content, dict):
        np.savez(study / name, **content)
    else:
        (study / name).write_text(content)
    with one_line(re.escape(words)) as error:
        write_report(study)
    assert str(study) in str(error.value) and Path(name).name in str(error.value)
    assert not (study / "report.html").exists()


@pytest.mark.slow
def test_another_process_writes_the_same_page(study, page):
    (study / "report.html").unlink()
    command = [sys.executable, "-m", "fedjax_collapse.command", "report", "."]
    done = subprocess.run(command, cwd=study, capture_output=True, text=True, encoding="utf-8", check=True)
    assert "Significant dimensions" in done.stdout and (study / "report.html").read_text(encoding="utf-8") == page


def test_arms_that_differ_from_the_description_are_told(tmp_path):
    """In data, clients, partition or network; what arms differ in otherwise is in the config below."""
    study = make_study(tmp_path / "s", seeds=1, rounds=2, features=4)
    assert "Other than that" not in description(load(study))
    own = {"partition": {"alpha": 10.0}, "network": {"name": "moon_cnn"}, "methods": {"feddecorr": {}}}
    arms = {"fedavg": {"clients": 10, "training": {"epochs": 3}}, "feddecorr": own, "absent": {"clients": 3}}
    text = description(load(configure(study, arms=arms)))
    assert text.endswith(". Other than that: feddecorr (partition.alpha 10.0, network.name moon_cnn).")
