"""What a report makes of a study's files that are damaged, or that somebody else wrote: nothing is run, waited for, or
answered with a traceback."""

import contextlib
import io
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from conftest import cases
from study_files import configure, rewrite
from test_report import make_study

from fedjax_collapse import UserError
from fedjax_collapse.results import final_table, load, page, plot, write_report
from fedjax_collapse.results.plot import contents, losses
from fedjax_collapse.results.plot.partition import partition_table
from fedjax_collapse.results.tables import means_frame, seeds_frame, target_table, timing_table
from fedjax_collapse.results.writing import csv_text

FILES = (
    "config.json", "provenance.json", "summary.json", "only/seed0/summary.json", "only/seed0/metrics.jsonl",
    "only/seed0/timing.jsonl", "only/seed0/clients.npz", "only/seed0/spectra.npz", "only/seed0/partition.npz",
)  # fmt: skip


@cases("pipe", "folder", "device", "link to itself", "socket")
def test_what_is_no_file_is_one_line_and_no_wait(kind, tmp_path, monkeypatch):
    study = small_study(tmp_path / "s", seeds=1)
    monkeypatch.chdir(study)  # the path of a socket is short
    make = {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "device": lambda path: os.symlink("/dev/zero", path),
        "link to itself": lambda path: os.symlink(os.path.basename(path), path),
        "socket": lambda path: socket.socket(socket.AF_UNIX).bind(path),
    }

    def read():
        return [(run.clients, run.spectra, run.partition) for run in load(".").runs]

    for name in FILES:
        content = Path(name).read_bytes()
        Path(name).unlink()
        make[kind](name)
        is_like_none = kind == "link to itself"
        with contextlib.suppress(UserError) if is_like_none else pytest.raises(UserError, match=rf"^{name}: "):
            read()
        os.rmdir(name) if kind == "folder" else os.unlink(name)
        Path(name).write_bytes(content)
    read()


OTHERS = (None, True, -1, 10**400, "$x^{\n<b>", [], ["a"], {"a": {}})
DRAWN = (-1,)  # figures take seconds each; the tables are made of all others, too
OF_FILE = {  # figures that show a file
    "config.json": (plot.sweep, plot.accuracy, plot.partition),
    "clients.npz": (plot.client_loss, losses.within_round),
    "spectra.npz": (plot.spectra, plot.client_spectra, plot.effective_rank),
    "partition.npz": (plot.partition,),
}


def changed_json(content: bytes, values=OTHERS):
    """The JSON, each of whose values is another one, or missing."""

    def change(value):
        yield from values
        items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
        for key, item in items:
            for other in change(item):
                yield {**value, key: other} if isinstance(value, dict) else [other, *value[1:]]
            if isinstance(value, dict):
                yield {name: other for name, other in value.items() if name != key}

    lines = content.splitlines()
    first, rest = (lines[0], lines[1:]) if lines[0].endswith(b"}") else (content, [])
    for other in change(json.loads(first)):
        yield b"\n".join([json.dumps(other).encode(), *rest, b""])


def changed_arrays(content: bytes, values=OTHERS):
    """The archive, each of whose arrays has another type, shape or value, or is missing."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    for name, array in arrays.items():
        others = [np.zeros(array.shape, kind) for kind in ("U3", "?", "c8", "M8[s]")]
        others += [np.ones(shape, array.dtype) for shape in ((), (0,), (2, 0), (2, 3, 4))]
        others += [np.full(array.shape, value) for value in (np.nan, -1e308, 2**62)]
        for other in [*others, None]:
            new = arrays | {name: other} if other is not None else {n: v for n, v in arrays.items() if n != name}
            out = io.BytesIO()
            np.savez(out, **new)
            yield out.getvalue()


def fuzz(folder: Path, names, make, values=OTHERS) -> set[str]:
    """What has come of each change of a file: a result, or one line that names the file."""
    outcomes = set()
    for name in names:
        content = (folder / name).read_bytes()
        for other in (changed_arrays if name.endswith(".npz") else changed_json)(content, values):
            (folder / name).write_bytes(other)
            try:
                make(folder)
                outcomes.add("made")
            except UserError as error:
                assert Path(name).name in str(error) or "start the study first" in str(error), (name, error)
                outcomes.add("refused")
            except Exception as error:
                raise AssertionError(f"{name}: {other[:300]}") from error
        (folder / name).write_bytes(content)
    return outcomes


def small_study(path: Path, seeds=2) -> Path:
    """With a sweep, a paper, epochs, domains, and what every start leaves."""
    study = make_study(path, arms=("only",), seeds=seeds, rounds=2, clients=3, classes=2, features=4)
    paper = {"source": "X", "comparable": False, "why": "small", "metric": "accuracy", "values": {"only": 50.0}}
    own = {"settings": {}, "means": {}, "sweep": {"training.epochs": [1, 5]}, "stop_at_accuracy": 0.0, "title": "T"}
    configure(study, paper=paper, **own)
    start = {"devices": ["cpu:0"], "layouts": {"only": "one"}, "convolutions": {"only": {"shifted": 2}}}
    start |= {"sha256": {"only": {"seed0": {"data": "a", "partition": "b"}}}, "cores": 2}
    (study / "provenance.json").write_text(json.dumps({"starts": [start, start]}))
    run = study / "only" / "seed0"
    logged = {f"epoch/{epoch}/task_loss": np.ones((2, 3)) for epoch in (1, 2)}
    np.savez(run / "clients.npz", round=[1, 2], task_loss=np.ones((2, 3)), steps=np.ones((2, 3), int), **logged)
    domains = {"domain_counts": np.ones((3, 2), int), "domain_names": np.array(["x", "y"])}
    np.savez(run / "partition.npz", class_counts=np.ones((3, 2), int), class_names=np.array(["a", "b"]), **domains)
    (study / "summary.json").write_text(json.dumps({"only": {"failed": {"seed1": "a line"}}}))
    return study


def test_files_of_other_content_are_tabulated_or_refused(tmp_path, monkeypatch):
    """Whatever is changed in them: every value of JSON, every array."""
    monkeypatch.setattr(page, "figures_of", lambda *_: ())

    def tables(folder):
        study = load(folder).with_unfinished()
        page.render(study), timing_table(study), partition_table(study), means_frame(study)
        target_table(study, study.base), csv_text(seeds_frame(study))

    assert fuzz(small_study(tmp_path / "s"), FILES, tables) == {"made", "refused"}


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
@cases("config.json", "metrics.jsonl", "clients.npz", "spectra.npz", "partition.npz")
def test_files_of_other_content_are_drawn_or_refused(name, tmp_path, monkeypatch):
    def figures_of(*arguments):
        return [of for of in contents.figures_of(*arguments) if of[1].draw in OF_FILE.get(name, (of[1].draw,))]

    monkeypatch.setattr(page, "figures_of", figures_of)
    study = small_study(tmp_path / "s", seeds=1)
    fuzz(study, [name if name == "config.json" else f"only/seed0/{name}"], write_report, DRAWN)


@pytest.mark.filterwarnings("error")
@cases(1e308, 1e-320, None)
def test_numbers_of_any_size_are_drawn(value, tmp_path):
    """What is larger than an axis can be counts as not finite; where all is null, no numbers have a column."""
    study = small_study(tmp_path / "s", seeds=1)
    run = study / "only" / "seed0"
    rewrite(run, "metrics.jsonl", lambda row, *_: dict.fromkeys(row, value) | {"round": row["round"]})
    if value is None:
        value = np.nan
        np.savez(run / "partition.npz", class_counts=np.zeros((3, 2), int))
        assert [*load(study).frame.dropna(axis=1)] == ["setting", "arm", "seed", "round"]
        assert final_table(load(study)).rows[0] == ["Arm", "Accuracy (%)", "Seeds"]
    np.savez(run / "spectra.npz", round=[1, 2], server=np.full((2, 4), value), local=np.full((2, 4), value))
    arrays = dict(np.load(run / "clients.npz"))
    np.savez(run / "clients.npz", **{n: a if n == "round" else np.full(a.shape, value) for n, a in arrays.items()})
    features = np.ones((1, 5, 3))
    features[0, 0, 0] = value
    arrays = dict(features=features, labels=[[0, 1, 0, 1, 1]], clients=[[0]], local_features=np.ones((1, 1, 5, 3)))
    np.savez(run / "measurements.npz", round=[1], **{f"features/{name}": of for name, of in arrays.items()})
    assert write_report(study).is_file()


@pytest.mark.usefixtures("unrendered")
def test_damaged_rows_of_metrics_and_timing(tmp_path):
    """Of timing one is left out, with a note; of metrics a last line cut short, and the first of two for a round."""
    folder = make_study(tmp_path / "s", arms=("only",), seeds=1, rounds=6, features=4)
    metrics, timing = (folder / "only" / "seed0" / f"{name}.jsonl" for name in ("metrics", "timing"))
    rewrite(timing.parent, timing.name, lambda row, *_: row | {"train": 1.0 + row["round"]})
    (whole,) = load(folder).runs
    lines = timing.read_bytes().splitlines(keepends=True)
    timing.write_bytes(b"".join([*lines[:3], b"\x80" + lines[3][1:], *lines[4:]]))
    again = json.dumps(whole.metrics[1] | {"accuracy": 0.25, "train/feddecorr/correlation": None})
    metrics.write_text(f'{metrics.read_text()}{again}\n{{"round": 7, "accur')
    study = load(folder)
    ((note,),) = (run.notes for run in study.runs)
    assert note.startswith(f"{timing}, line 4: not valid JSON") and note.endswith("; its seconds are left out.")
    assert "line 4: not valid JSON" in write_report(folder).read_text(encoding="utf-8")
    assert study.timing["round"].tolist() == [1, 2, 3, 5, 6]
    assert (whole.seconds_per_round, study.runs[0].seconds_per_round) == (5.0, np.median([3, 4, 6, 7]))
    assert study.frame["round"].tolist() == [1, 2, 3, 4, 5, 6] and study.frame["accuracy"][1] == 0.25
