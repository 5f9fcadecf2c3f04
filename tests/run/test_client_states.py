"""The states of clients in files: the cohort's rows, and the way back to an earlier round."""

import numpy as np
import pytest
from conftest import assert_same_bits, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse.core.records import ClientState, Damaged, UserError
from fedjax_collapse.engine.client_states import StoredStates

INITIAL = ClientState({"method": {"a": np.full((2, 3), 0.5, np.float32), "b": np.int32(7)}}, {"head": np.ones(2)})
COHORTS = st.lists(st.sets(st.integers(0, 5), min_size=1).map(sorted), min_size=1, max_size=6)


def of_round(round, ids):
    """The states of a cohort after a round."""
    base = 10 * round + np.asarray(ids)
    a = (base[:, None, None] + np.zeros((2, 3))).astype(np.float32)
    return ClientState({"method": {"a": a, "b": base.astype(np.int32)}}, {"head": -base[:, None] * np.ones(2)})


def all_of(states):
    return states.take(np.arange(6))


@settings(max_examples=15, deadline=None)
@given(cohorts=COHORTS, data=st.data())
def test_a_run_returns_to_any_round_that_is_logged(tmp_path_factory, cohorts, data):
    folder = tmp_path_factory.mktemp("run") / "states"
    states, after, digests = StoredStates(folder, INITIAL, 6, 0), [], []
    after.append(all_of(states))
    for round, ids in enumerate(cohorts):
        digests.append(states.digest)
        states.put(round, np.array(ids), of_round(round, ids))
        after.append(all_of(states))
        assert_same_bits(states.take(np.array(ids)), of_round(round, ids))
    done = data.draw(st.integers(1, len(cohorts)))
    again = StoredStates(folder, INITIAL, 6, done, [*digests, states.digest][done])
    assert_same_bits(all_of(again), after[done])
    assert sorted(again._logged()) == list(range(done))
    again.forget_before(done - 1)
    assert again._logged() == [done - 1]
    assert_same_bits(all_of(StoredStates(folder, INITIAL, 6, 0)), after[0])


def test_files_are_sparse_and_padding_is_initial(tmp_path):
    states = StoredStates(tmp_path / "states", INITIAL, 1_000_000, 0)
    states.put(0, np.array([3, 900_000]), of_round(0, [3, 900_000]))
    states.flush()
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "states").glob("*.bin")) < 2**20
    found = states.take(np.array([900_000, 5, 1_000_000]))
    assert found.memory["method"]["b"].tolist() == [900_000, 7, 7]


def test_a_kill_between_the_log_and_the_rows_is_undone(tmp_path, monkeypatch):
    states = StoredStates(tmp_path / "states", INITIAL, 6, 0)
    states.put(0, np.array([1, 2]), of_round(0, [1, 2]))
    before, digest = all_of(states), states.digest
    with pytest.raises(ValueError, match="shorter"):  # after the log, and after the first array
        states.put(1, np.array([2, 3]), ClientState({"method": {"a": of_round(1, [2, 3]).memory["method"]["a"]}}, {}))
    assert (states._rows[0] != before.memory["method"]["a"]).any()
    assert_same_bits(all_of(StoredStates(tmp_path / "states", INITIAL, 6, 1, digest)), before)


def test_more_files_than_arrays_are_one_line(tmp_path):
    """As an earlier version stored them."""
    StoredStates(tmp_path / "states", INITIAL, 6, 0)
    with pytest.raises(UserError, match=r"states: has 3 arrays of states, this run needs 2; use a new folder$"):
        StoredStates(tmp_path / "states", INITIAL._replace(private={}), 6, 1)


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@cases(
    (lambda folder: flip(folder / "0.bin", 50), "states: the state of client 2 differs from what was written"),
    (lambda folder: flip(folder / "2.bin", 32), "states: the state of client 2 differs from what was written"),
    (lambda folder: flip(folder / "checksums.bin", 32), "states: differs from what was written up to round 2"),
    (lambda folder: (folder / "checksums.bin").write_bytes(bytes(96)), "states: differs from what was written up"),
    (lambda folder: (folder / "log" / "2.npz").unlink(), "states: differs from what was written up to round 2"),
    (lambda folder: flip(folder / "log" / "2.npz", 60), r"log/2.npz: not a readable \.npz file"),
    (lambda folder: (folder / "log/1.npz").replace(folder / "log/2.npz"), "states: differs from what was written"),
    (lambda folder: np.savez(folder / "log" / "2.npz", ids=np.array([1])), "log/2.npz: differs from what was"),
    (lambda folder: (folder / "1.bin").unlink(), r"1\.bin: is missing; the states of the clients are lost"),
    (lambda folder: (folder / "checksums.bin").unlink(), "checksums.bin: is missing"),
    (lambda folder: swap_clients(folder), "states: differs from what was written up to round 2|client 1 differs"),
)
def test_damage_is_noticed_before_it_is_used(damage, message, tmp_path):
    """After the last checkpoint, of round 2, a third round was written."""
    states, folder = StoredStates(tmp_path / "states", INITIAL, 6, 0), tmp_path / "states"
    for round, ids in enumerate(([1, 2], [2, 4], [1, 5])):
        if round == 2:
            digest = states.digest
        states.put(round, np.array(ids), of_round(round, ids))
    states.flush()
    damage(folder)
    with pytest.raises(Damaged, match=message):
        all_of(StoredStates(folder, INITIAL, 6, 2, digest))


def swap_clients(folder):
    """Gives clients 1 and 2 the rows and checksums of each other, which are whole."""
    for path in folder.glob("*.bin"):
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(6, -1).copy()
        rows[[1, 2]] = rows[[2, 1]]
        path.write_bytes(rows.tobytes())
