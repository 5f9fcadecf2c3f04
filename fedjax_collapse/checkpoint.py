"""Checkpoints of a run's state, through Orbax: the only module that knows it."""

from pathlib import Path

import jax
from orbax.checkpoint import v1 as ocp

from fedjax_collapse.records import PyTree, UserError

_KEPT = 2
_UNREADABLE = "[\\"  # Orbax writes below them and finds nothing there afterwards


def check_folder(folder: Path) -> None:
    """Raises UserError if checkpoints in the folder could not be read again, as of paths with such characters."""
    found = sorted(set(str(folder.absolute())) & set(_UNREADABLE))
    if found:
        raise UserError(f"{folder}: checkpoints cannot be in a path with {' or '.join(found)}; choose another folder")


class Checkpoints:
    """The checkpoints in a folder, by round; a save that is killed leaves the earlier ones intact.

    Raises:
        UserError: ``check_folder``'s.
    """

    def __init__(self, folder: Path):
        check_folder(folder)
        policy = ocp.training.preservation_policies.LatestN(_KEPT)
        self._checkpointer = ocp.training.Checkpointer(folder.absolute(), preservation_policy=policy)

    @property
    def latest(self) -> int | None:
        """The round of the newest complete checkpoint."""
        newest = self._checkpointer.latest
        return None if newest is None else newest.step

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of all complete checkpoints, in their order."""
        return tuple(sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints))

    def forget_after(self, round: int) -> None:
        """Deletes the checkpoints of later rounds, so that the run can go on from that one."""
        for later in (kept for kept in self.rounds if kept > round):
            self._checkpointer.delete(later)

    def save(self, round: int, state: PyTree) -> None:
        if round != self.latest:
            self._checkpointer.save(round, state, force=True)

    def load(self, round: int, template: PyTree) -> PyTree:
        """The state of that round, with the structure and the placement of ``template``.

        Raises:
            UserError: the checkpoint is of a state of another structure, shape or dtype.
        """
        stored = _describe(self._checkpointer.metadata(round).metadata)
        expected = _describe(template)
        for name in sorted(stored.keys() | expected.keys()):
            if stored.get(name) != expected.get(name):
                raise UserError(
                    f"{self._checkpointer.directory}, round {round}: {name} is {stored.get(name, 'absent')}, "
                    f"this run needs {expected.get(name, 'none')}; use a new folder"
                )
        return self._checkpointer.load(round, template)

    def close(self) -> None:
        self._checkpointer.close()


def _describe(tree):
    """Shape and dtype of every array by its path; random keys as the integers that they are stored as."""
    described = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        described[jax.tree_util.keystr(path, simple=True, separator="/")] = f"{leaf.dtype}{list(leaf.shape)}"
    return described
