"""Checkpoints are written while the run continues, by one thread for all runs, and are on disk when they count."""

import errno
import os
import signal
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import assert_same_bits, cases, run_at_once
from orbax.checkpoint import v1 as ocp

from fedjax_collapse import FedAvg, LocalTraining, Scaffold, engine
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.resumption import rounds_kept

TRAINING = LocalTraining(epochs=1, batch_size=16, learning_rate=0.05)


class Blocked:
    """``ocp.save`` that begins, and waits until it may continue."""

    def __init__(self, monkeypatch):
        self.begun, self.may_write, save = threading.Event(), threading.Event(), ocp.save

        def wait_and_save(*arguments):
            self.begun.set()
            assert self.may_write.wait(30)
            save(*arguments)

        monkeypatch.setattr(ocp, "save", wait_and_save)


@pytest.fixture
def blocked(monkeypatch):
    return Blocked(monkeypatch)


@pytest.fixture
def run(federation, model):
    """Two rounds, or as many, with a checkpoint after each; client states that are on the host are changed in place."""

    def run_rounds(folder, algorithm=FedAvg(TRAINING, {"scaffold": Scaffold()}), rounds=2, **options):  # noqa: B008
        options = dict(checkpoint_every=1, storage="host", folder=folder) | options
        return run_at_once(federation, model, algorithm, rounds, **options)

    return run_rounds


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
@cases("host", "device")
def test_a_run_goes_on_while_a_checkpoint_is_written(storage, run, tmp_path, monkeypatch):
    """Round 2 has changed every state when that of round 1 is written; what is left is as if that had been at once."""
    expected = run(tmp_path / "expected", storage=storage)
    blocked, seen = Blocked(monkeypatch), []

    def listener(row, _):
        seen.append(row["round"])
        if row["round"] == 2:
            assert blocked.begun.wait(30)
            assert not (tmp_path / "run" / "checkpoints" / "1").exists()
            blocked.may_write.set()

    result = run(tmp_path / "run", storage=storage, listener=listener)
    assert seen == [1, 2] and rounds_kept(tmp_path / "run") == (1, 2)
    assert_same_bits(result.variables, expected.variables)
    for round in (1, 2):
        both = (Checkpoints(tmp_path / name / "checkpoints") for name in ("run", "expected"))
        found, should = (of.load(round, result.state) for of in both)
        assert_same_bits(found[0]._replace(key=()), should[0]._replace(key=()))
        assert found[1]["metrics.jsonl"] == should[1]["metrics.jsonl"]


def test_a_run_waits_where_a_copy_of_its_states_does_not_fit(run, tmp_path, monkeypatch):
    saved, save = [], ocp.save
    monkeypatch.setattr(engine.memory, "free_bytes_of_host", lambda: 0)
    monkeypatch.setattr(ocp, "save", lambda path, state: saved.append(state) or save(path, state))

    def listener(row, _):
        if row["round"] == 2:
            assert (tmp_path / "checkpoints" / "1").is_dir()

    result = run(tmp_path, listener=listener)
    (stored, *_), (same, *_) = (jax.tree.leaves(state.clients) for state in (saved[-1], result.state))
    assert stored is same or np.shares_memory(stored, same)
    assert rounds_kept(tmp_path) == (1, 2)


def test_a_checkpoint_holds_what_was_saved(tmp_path, blocked, float64):
    """Whatever the run does with its arrays meanwhile, and in which precision; other threads have JAX's default."""
    weights, key, host = jax.numpy.arange(3.0) / 3, jax.random.key(1), np.arange(3.0) / 3
    template = {"weights": np.zeros(3), "key": jax.random.key(0), "host": np.zeros(3)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"weights": weights, "key": key, "host": host}, {})
    assert not (tmp_path / "1").exists()
    jax.jit(lambda w: w + 1, donate_argnums=0)(weights)
    host[:] = 7
    blocked.may_write.set()
    state, _ = checkpoints.load(1, template)
    assert state["weights"].dtype == state["host"].dtype == np.float64 and state["key"] == key
    assert state["weights"].tolist() == state["host"].tolist() == [0, 1 / 3, 2 / 3]


def test_two_runs_at_once(tmp_path, monkeypatch):
    """Each saves and loads in a thread of its own; Orbax never has two of them, and one thread saves, in order."""
    failed, writers, busy = [], set(), []

    def alone(name, function):
        def call(*arguments):
            busy.append(threading.current_thread())
            failed.extend(busy[1:])
            writers.update(busy if name == "save" else ())
            try:
                return function(*arguments)
            finally:
                busy.pop()

        monkeypatch.setattr(ocp, name, call)

    alone("save", ocp.save)
    alone("load", ocp.load)

    def go(number):
        checkpoints, template = Checkpoints(tmp_path / str(number)), {"w": np.zeros(1000)}
        for round in range(1, 5):
            checkpoints.save(round, {"w": np.full(1000, 10.0 * number + round)}, {"n": number})
            if round % 2 == 0:
                state, notes = checkpoints.load(round, template)
                if notes != {"n": number} or (state["w"] != 10 * number + round).any():
                    failed.append((number, round))

    threads = [threading.Thread(target=go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads) and len(writers) == 1
    assert [Checkpoints(tmp_path / str(number)).rounds for number in range(3)] == [(3, 4)] * 3


@cases("save", "rounds", "load", "wait")
def test_what_goes_wrong_is_raised_by_what_comes_next_and_once(ask, tmp_path, monkeypatch):
    state, checkpoints = {"w": np.zeros(3)}, Checkpoints(tmp_path)
    questions = {
        "save": lambda: checkpoints.save(3, state, {}),
        "rounds": lambda: checkpoints.rounds,
        "load": lambda: checkpoints.load(1, state),
        "wait": checkpoints.wait,
    }
    checkpoints.save(1, state, {})
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(ocp, "save", full)
        checkpoints.save(2, state, {})
        with pytest.raises(OSError, match="No space left"):
            questions[ask]()
    questions[ask]()
    assert checkpoints.rounds == ((1, 3) if ask == "save" else (1,))


@cases(1, 2)
def test_a_full_disk_reaches_whoever_waits_for_the_run(fails_in, run, tmp_path, monkeypatch):
    """At the next save, and after the last one at the end; the same call continues when there is room."""
    save, calls = ocp.save, iter(range(1, 9))
    with monkeypatch.context() as patch:
        patch.setattr(ocp, "save", lambda *arguments: full() if next(calls) == fails_in else save(*arguments))
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path / "run")
    assert rounds_kept(tmp_path / "run")[-1] == fails_in - 1
    assert not (tmp_path / "run" / "final.npz").exists()
    assert_same_bits(run(tmp_path / "run").variables, run(tmp_path / "whole").variables)


def test_an_error_of_the_run_goes_before_one_of_the_writing(run, tmp_path, monkeypatch):
    def listener(row, _):
        if row["round"] == 2:
            raise ZeroDivisionError("of the run")

    with monkeypatch.context() as patch:
        patch.setattr(ocp, "save", full)
        with pytest.raises(ZeroDivisionError, match="of the run"):
            run(tmp_path, listener=listener)
    assert rounds_kept(tmp_path) == (0,)  # and nothing is left to raise


@cases(1, 2)
def test_ctrl_c_while_a_checkpoint_is_written_loses_nothing(times, run, tmp_path, blocked, interruptible):
    """The first stops after a checkpoint, the second at once: what was being written is written."""
    expected = run(None, rounds=4).variables

    def listener(row, _):
        if row["round"] == 2:
            assert blocked.begun.wait(30)
            threading.Timer(0.3, blocked.may_write.set).start()
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    if times == 1:
        assert run(tmp_path, rounds=4, listener=listener).rounds_done == 2
    else:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, rounds=4, listener=listener)
    assert (tmp_path / "checkpoints" / str(3 - times)).is_dir()  # before anything waits for it
    assert rounds_kept(tmp_path)[-1] == 3 - times
    assert_same_bits(run(tmp_path, rounds=4).variables, expected)


def test_ctrl_c_while_it_is_waited_for_leaves_the_save_known(tmp_path, blocked, interruptible):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"w": np.zeros(3)}, {})
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        checkpoints.wait()
    blocked.may_write.set()
    assert Checkpoints(tmp_path).rounds == (1,)


def identity(path: Path | int) -> int:
    return os.stat(path).st_ino


def test_the_disk_has_what_counts_before_it_counts(run, tmp_path, monkeypatch):
    """All of a checkpoint and its history, before it is moved into place; and its place, before an old one goes."""
    flushed, moved, fsync, replace = {}, [], os.fsync, os.replace

    def noted_fsync(descriptor):
        fsync(descriptor)
        flushed[identity(descriptor)] = os.stat(descriptor).st_size

    def missing(paths):
        """Those whose content of now was not flushed; of the names in a folder, whether they were."""
        return [p for p in paths if flushed.get(identity(p), -1) < (0 if p.is_dir() else p.stat().st_size)]

    def noted_replace(source, target):
        source, target = Path(source), Path(target)
        if target.parent.name == "checkpoints":
            moved.append(target.name)
            arrays = [tmp_path / "clients", tmp_path / "spectra", *tmp_path.glob("*/*.npz")]
            assert not missing([source, *source.rglob("*"), *arrays, tmp_path])
            for rows in (tmp_path / "metrics.jsonl", tmp_path / "timing.jsonl"):  # those of later rounds may be there
                of_before = rows.read_bytes().splitlines(keepends=True)[: int(target.name)]
                assert flushed[identity(rows)] >= sum(map(len, of_before))
            flushed.pop(identity(target.parent), None)
        elif source.parent.name == "checkpoints":
            assert not missing([source.parent])
        elif target.suffix in (".npz", ".json"):
            assert not missing([source])
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    run(tmp_path, FedAvg(TRAINING), rounds=3)
    assert moved == ["1", "2", "3"] and not missing([tmp_path, tmp_path / "final.npz", tmp_path / "clients.npz"])


def test_a_file_system_without_fsync_is_taken_as_it_is(run, tmp_path, monkeypatch):
    def refused(number):
        def fsync(_):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", refused(errno.EINVAL))
    run(tmp_path / "none", rounds=1)
    assert rounds_kept(tmp_path / "none") == (1,)
    monkeypatch.setattr(os, "fsync", refused(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        run(tmp_path / "broken", rounds=1)
