"""The states of all clients in files; a round reads and writes only the rows of its cohort.

There is a sparse file for each array of a state, with a row for each client, and a checksum for each client. A client
without one has the initial state; its rows are holes, which take no space. Rows are compared with their checksum when
they are read, and the sum of all checksums with the checkpoint's note. Before a round overwrites rows, it logs the old
ones, so that the states of the checkpoint from which a run resumes can be restored. Of several processes only the
first has the files; it sends the states of a cohort to the others.
"""

import math
import shutil
from pathlib import Path

import jax
import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.checksums import as_bytes, checksum
from fedjax_collapse.core.processes import in_first_process
from fedjax_collapse.core.records import ClientState, Damaged, UserError
from fedjax_collapse.core.round_arrays import read_npz

_SUMS, _LOG = "checksums.bin", "log"
_LOST = "the states of the clients are lost, remove the run's folder to start again"


class StoredStates:
    """The states of all clients, in a folder.

    Several processes make it, and call ``take`` and ``put``, together; the rest is for the first one.

    Args:
        folder: of the files; made, or emptied, if no round is done. Only that of the first process is used.
        initial: the state of every client before the first round.
        num_clients: the number of clients.
        done: the number of rounds after which the run resumes; writes of later rounds are undone.
        noted: the ``digest`` after these rounds.

    Raises:
        Damaged: files are missing, of another size, or differ from what was written; a UserError in the other
            processes.
        UserError: there are more files.
    """

    def __init__(self, folder: Path, initial: ClientState, num_clients: int, done: int, noted: str = ""):
        self._folder, self._log, self._initial = folder, folder / _LOG, jax.tree.map(np.asarray, initial)
        self._num_clients = num_clients
        self._digest = np.zeros(2, np.uint64)
        self._open(done, noted)

    @property
    def digest(self) -> str:
        """The sum, without carry, of the checksums of all clients, in the first process."""
        return self._digest.tobytes().hex()

    @in_first_process
    def _open(self, done, noted):
        if not done:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._log.mkdir(parents=True, exist_ok=True)
        leaves = jax.tree.leaves(self._initial)
        found = sum(path.stem.isdecimal() for path in self._folder.glob("*.bin"))
        if done and found > len(leaves):
            raise UserError(
                f"{self._folder}: has {found} arrays of states, this run needs {len(leaves)}; use a new folder"
            )
        self._rows = [self._mapped(f"{i}.bin", leaf.dtype, leaf.shape, done) for i, leaf in enumerate(leaves)]
        self._sums = self._mapped(_SUMS, np.dtype(np.uint64), (2,), done)
        for round in sorted(self._logged(), reverse=True):
            if round >= done:
                self._undo(round)
        self._digest = np.bitwise_xor.reduce(self._sums, axis=0)
        if done and self.digest != noted:
            raise Damaged(
                f"{self._folder}: differs from what was written up to round {done}; restore it, or remove the run's "
                "folder to start again"
            )

    @in_first_process
    def take(self, ids: np.ndarray) -> ClientState:
        """Returns the states of a cohort, stacked; the initial one for identities that are no client's.

        Raises:
            Damaged: a state differs from what was written; a UserError in the other processes.
        """
        states = jax.tree.map(lambda leaf: np.repeat(leaf[None], len(ids), axis=0), self._initial)
        of_cohort = jax.tree.leaves(states)
        sums = self._sums.take(ids, axis=0, mode="clip")
        written = np.flatnonzero((ids < self._num_clients) & sums.any(axis=1))
        for own, rows in zip(of_cohort, self._rows, strict=True):
            own[written] = rows[ids[written]]
        found = _checksums(ids[written], [own[written] for own in of_cohort])
        wrong = np.flatnonzero((found != sums[written]).any(axis=1))
        if len(wrong):
            raise Damaged(
                f"{self._folder}: the state of client {ids[written][wrong[0]]} differs from what was written; {_LOST}"
            )
        return states

    @in_first_process
    def put(self, round: int, ids: np.ndarray, states: ClientState) -> None:
        """Writes the states of clients after a round, the ``round``-th from 0, and logs the old ones first.

        Raises:
            OSError: the disk is full, or fails; a UserError in the other processes.
        """
        sums = self._sums[ids]
        old = {str(i): rows[ids[sums.any(axis=1)]] for i, rows in enumerate(self._rows)}
        with files.whole(self._log / f"{round}.npz") as file:
            np.savez(file, ids=ids, checksums=sums, **old)
        for rows, new in zip(self._rows, jax.tree.leaves(states), strict=True):
            rows[ids] = new
        self._sums[ids] = new_sums = _checksums(ids, jax.tree.leaves(states))
        self._digest ^= np.bitwise_xor.reduce(np.concatenate([sums, new_sums]), axis=0)

    def flush(self) -> None:
        """Waits until all states are on the disk."""
        for rows in (*self._rows, self._sums):
            rows.flush()

    def forget_before(self, round: int) -> None:
        """Removes the logs of rounds before the oldest one to which a run may return."""
        for logged in self._logged():
            if logged < round:
                self._path(logged).unlink(missing_ok=True)

    def _undo(self, round):
        found = read_npz(self._path(round))
        try:
            ids, sums = found["ids"], found["checksums"]
            for i, rows in enumerate(self._rows):
                rows[ids[sums.any(axis=1)]] = found[str(i)]
            self._sums[ids] = sums
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise Damaged(f"{self._path(round)}: differs from what was written; {_LOST}") from error
        self.flush()
        self._path(round).unlink()

    def _logged(self):
        return [int(path.stem) for path in self._log.glob("*.npz") if path.stem.isdecimal()]

    def _path(self, round):
        return self._log / f"{round}.npz"

    def _mapped(self, name, dtype, shape, done):
        """Returns the rows of a file, which is made without taking space."""
        path, size = self._folder / name, self._num_clients * dtype.itemsize * math.prod(shape)
        found = path.stat().st_size if path.exists() else None
        if done and found != size:
            problem = "is missing" if found is None else f"has {found} bytes, expected {size}"
            raise Damaged(f"{path}: {problem}; {_LOST}")
        if not done:
            with files.writing(path, is_new=True) as file:
                file.truncate(size)
        try:
            file = files.writing(path)
        except OSError as error:
            raise Damaged(f"{path}: cannot be opened ({error.strerror}); {_LOST}") from error
        with file:
            return np.memmap(file, dtype, "r+", shape=(self._num_clients, *shape))


def _checksums(ids, leaves):
    """Returns the checksums of stacked states [clients, 2], which depend on the client's identity."""
    pieces = [as_bytes(np.asarray(leaf)) for leaf in leaves]
    sizes = [len(piece) // max(1, len(ids)) for piece in pieces]
    rows = (
        checksum([piece[row * size : (row + 1) * size] for piece, size in zip(pieces, sizes, strict=True)], int(id))
        for row, id in enumerate(ids)
    )
    return np.frombuffer(b"".join(rows), np.uint64).reshape(-1, 2)


def check_space(
    folder: Path, initial: ClientState, num_clients: int, cohort_size: int, rounds: int, logged: int
) -> None:
    """Raises UserError if the states of all clients that are drawn, and their logs, may not fit on the disk.

    Args:
        folder: of the run.
        initial: the state of one client.
        num_clients: the number of clients.
        cohort_size: clients in a round.
        rounds: the number of rounds.
        logged: the most rounds that are logged at once.
    """
    each = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(initial))
    drawn = math.ceil(num_clients * -math.expm1(-cohort_size * rounds / num_clients))  # those drawn at least once
    needed, free = each * (drawn + cohort_size * min(rounds, logged)), shutil.disk_usage(folder).free
    free += sum(path.stat().st_blocks * 512 for path in folder.glob("*/*") if path.is_file())
    if needed > free:
        raise UserError(
            f"client states: {each / 2**20:.3g} MiB of each of about {drawn:,} clients, with logs {needed / 2**30:.4g} "
            f"GiB, but {free / 2**30:.4g} GiB are free in {folder}; choose a method without states, a smaller network, "
            "a lower checkpoint_every, or another disk"
        )
