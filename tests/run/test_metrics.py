"""What rounds leave on disk: segments, merging, going on, and kills between any two steps of it. Nothing is trained."""

import functools
import itertools
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import cases, check
from small_studies import tree

from fedjax_collapse import UserError
from fedjax_collapse.core import round_arrays
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.run.history import KINDS, History, read_arrays

EVERY = 2  # rounds between evaluations


def add(history: History, round: int, changes: dict | None = None) -> None:
    """An evaluated round with numbers that follow from it; client 1 is outside the cohort."""
    rounds = np.arange(round - EVERY, round) + 1
    losses = np.random.default_rng(round).random((EVERY, 100))
    losses[:, 1] = np.nan
    spectrum = np.random.default_rng(100 + round).random(50)
    row = {"round": round, "accuracy": 0.01 * round, "loss": math.nan, "nested": [1.5, [math.inf], {"a": math.nan}]}
    measurements = {"norm": np.float32(round), "confusion": np.full((3, 3), round), **(changes or {})}
    history.add_rounds({"round": rounds, "task_loss": losses})
    spectra = {"round": round, "server": spectrum, "local": 2 * spectrum}
    own_tests = {"received/score": np.full(100, round), "received/loss": losses[-1]}
    history.add(row, {"round": round, "train": 1.0}, spectra, measurements, own_tests)


def filled(folder: Path, rounds: int, save_every: int = 4) -> History:
    """The history of a run of so many rounds, all of them saved."""
    history = History(folder)
    for round in range(EVERY, rounds + 1, EVERY):
        add(history, round)
        if round % save_every == 0 or round == rounds:
            history.save_arrays()
    return history


def resume(folder: Path, round: int) -> History:
    """What a run does to continue."""
    history = History.read(folder, round)
    history.cut()
    return history


@functools.cache
def expected(rounds: int) -> dict[str, dict[str, np.ndarray]]:
    history = filled(None, rounds)
    return {kind: history.arrays(kind) for kind in KINDS}


def assert_holds(folder: Path, rounds: int) -> None:
    """The folder's arrays are those of so many rounds, each of them once."""
    for kind, values in expected(rounds).items():
        found = read_arrays(folder, kind)
        assert list(found) == list(values)
        for name in values:
            np.testing.assert_array_equal(found[name], values[name], err_msg=f"{kind} {name}")
            assert found[name].dtype == values[name].dtype


def test_a_save_writes_the_rounds_since_the_last_one(tmp_path):
    """Its size does not depend on how many there were before, and nothing that is there is written again."""
    history, written = History(tmp_path), []
    for round in range(EVERY, 101, EVERY):
        add(history, round)
        if round % 4 == 0:
            before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
            history.save_arrays()
            assert all(path.stat().st_mtime_ns == time for path, time in before.items())
            new = set(tmp_path.rglob("*.npz")) - before.keys()
            assert {path.parent.name for path in new} == set(KINDS) and len(new) == len(KINDS)
            written.append(sum(path.stat().st_size for path in new))
    assert max(written) < 1.05 * min(written)
    with np.load(tmp_path / "clients" / "000097.npz") as last:
        assert last["round"].tolist() == [97, 98, 99, 100]
    before = tree(tmp_path)
    history.save_arrays()  # nothing is new
    assert tree(tmp_path) == before
    assert_holds(tmp_path, 100)


def test_the_end_of_a_run_makes_one_file_of_each_kind(tmp_path):
    history = filled(tmp_path, 10)
    assert_holds(tmp_path, 10)
    history.finish()
    assert set(tree(tmp_path)) == {"metrics.jsonl", "timing.jsonl", *(f"{kind}.npz" for kind in KINDS)}
    assert_holds(tmp_path, 10)
    once = tree(tmp_path)
    history.finish()
    resume(tmp_path, 10).finish()
    assert tree(tmp_path) == once
    assert not (tmp_path / "clients").exists()


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("round", [0, 2, 4, 6, 8, 10])  # 2 and 6 lie inside a segment
def test_going_on_from_an_earlier_round_forgets_the_later_ones(tmp_path, round, is_finished):
    for name in ("parts", "whole"):
        (tmp_path / name).mkdir()
    history = filled(tmp_path / "parts", 10)
    if is_finished:
        history.finish()
    resumed = resume(tmp_path / "parts", round)
    assert [row["round"] for row in resumed.rows] == list(range(EVERY, round + 1, EVERY))
    assert_holds(tmp_path / "parts", round)
    for later in range(round + EVERY, 15, EVERY):
        add(resumed, later)
        resumed.save_arrays()
    assert_holds(tmp_path / "parts", 14)
    resumed.finish()
    filled(tmp_path / "whole", 14).finish()
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")


class Killed(BaseException):
    """What ends a process at once: nothing catches it."""


def train(folder: Path, rounds: int) -> None:
    """What a run does with its history: going on from the last checkpoint, saving before each, finishing."""
    checkpoint = folder / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    history = resume(folder, done)
    for round in range(done + EVERY, rounds + 1, EVERY):
        add(history, round)
        if round % 4 == 0 or round == rounds:
            history.save_arrays()
            (folder / "new").write_text(str(round))
            os.replace(folder / "new", checkpoint)
    history.finish()


@cases((0, "after"), (4, "before"))  # 4: a finished run continues
def test_killed_between_any_two_steps(done_before, moment, tmp_path, monkeypatch):
    """At each step that changes a file or folder: nothing is lost, nothing is there twice, and the end is the same."""
    (tmp_path / "whole").mkdir()
    train(tmp_path / "whole", 8)
    for number in itertools.count():
        folder = tmp_path / f"killed{number}"
        folder.mkdir()
        if done_before:
            train(folder, done_before)
        with monkeypatch.context() as patch:
            steps = itertools.count()
            for name in ("replace", "unlink", "rmdir", "mkdir"):
                patch.setattr(os, name, killing(getattr(os, name), steps, number, moment))
            patch.setattr(np, "savez_compressed", killing(np.savez_compressed, steps, number, moment))
            try:
                train(folder, 8)
                break
            except Killed:
                pass
        saved = int((folder / "checkpoint").read_text()) if (folder / "checkpoint").exists() else 0
        for kind, values in expected(8).items():
            found = read_arrays(folder, kind)
            reached = len(found.get("round", ()))
            assert not reached or found["round"][-1] >= saved
            assert all(np.array_equal(found[name], values[name][:reached], equal_nan=True) for name in found)
            assert saved == 0 or reached
        train(folder, 8)
        assert tree(folder) == tree(tmp_path / "whole")
    assert number > 15  # there were so many steps


def killing(function, steps, number, moment):
    """The function, which kills at one of all steps, before or after it is done; a file is half written before."""

    def wrapped(*args, **kwargs):
        is_last = next(steps) == number
        if is_last and moment == "before":
            if function.__name__ == "savez_compressed":
                args[0].write(b"PK")
            raise Killed
        try:
            return function(*args, **kwargs)
        finally:
            if is_last:
                raise Killed

    return wrapped


def test_a_run_that_finishes_while_it_is_read_loses_nothing(tmp_path, monkeypatch):
    history, read_npz = filled(tmp_path, 10), round_arrays.read_npz

    def read_and_end(path):
        found = read_npz(path)
        history.finish()
        return found

    monkeypatch.setattr(round_arrays, "read_npz", read_and_end)
    assert read_arrays(tmp_path, "clients")["round"].tolist() == list(range(1, 11))


def test_measurements_have_any_shape_and_keep_it(tmp_path):
    history = filled(tmp_path, 4)
    measured = history.arrays("measurements")
    assert measured["confusion"].shape == (2, 3, 3) and measured["norm"].tolist() == [2, 4]
    before = tree(tmp_path)
    for wrong, message in (
        ({"confusion": np.zeros((3, 4))}, r"'confusion' has shape \(3, 3\) .* 4 and has shape \(3, 4\) in round 6"),
        ({"new": 1.0}, "'new' is absent in round 4 and has shape"),
        ({"file": 1.0}, "measurement 'file': this name is taken"),
        ({"norm": "large"}, "measurement 'norm' is of type <U5, expected numbers"),
    ):
        check(message, add, history, 6, wrong)
    assert len(history.rows) == 2 and tree(tmp_path) == before
    resumed = resume(tmp_path, 4)
    check("'confusion' has shape", add, resumed, 6, {"confusion": 0.0})


def test_nan_is_null_on_disk_and_nan_again_after_a_resume(tmp_path):
    whole = filled(tmp_path, 2)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line)["loss"] is None and json.loads(line)["nested"] == [1.5, [None], {"a": None}]
    row = resume(tmp_path, 2).rows[0]
    assert math.isnan(row["loss"]) and row["nested"][0] == 1.5
    assert math.isnan(row["nested"][1][0]) and math.isnan(row["nested"][2]["a"])
    assert row["accuracy"] == whole.rows[0]["accuracy"]
    assert (tmp_path / "metrics.jsonl").read_text() == line


def test_a_file_that_is_missing_or_short_is_noticed_and_nothing_is_removed(tmp_path):
    filled(tmp_path, 8)
    (tmp_path / "spectra" / "000006.npz").unlink()
    before = tree(tmp_path)
    check("its checkpoint is of round 8, its metrics end at 4", resume, tmp_path, 8)
    assert tree(tmp_path) == before
    assert resume(tmp_path, 4).arrays("spectra")["round"].tolist() == [2, 4]


@cases(
    (b"no zip", "not a readable .npz file"),
    ({"server": np.ones((2, 3))}, "has no array 'round'"),
    ({"round": [6, 8], "server": np.ones((3, 50)), "local": np.ones((2, 50))}, "'server' has shape (3, 50)"),
    ({"round": [6, 8], "server": np.ones((2, 50))}, "'local' has shape (50,) in round 4 and is absent in round 6"),
)
def test_a_damaged_file_is_one_line_that_names_it(content, words, tmp_path):
    filled(tmp_path, 8)
    path = tmp_path / "spectra" / "000006.npz"
    path.write_bytes(content) if isinstance(content, bytes) else write_npz(path, content)
    for read in (lambda: read_arrays(tmp_path, "spectra"), lambda: resume(tmp_path, 8)):
        with pytest.raises(UserError) as error:
            read()
        assert str(path) in str(error.value) and words in str(error.value) and "\n" not in str(error.value)
    resume(tmp_path, 0)  # a fresh start looks at none of them
    assert not list(tmp_path.rglob("*.npz"))
