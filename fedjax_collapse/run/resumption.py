"""Where a run starts: at the last whole checkpoint that all runs of a batch have, or anew."""

import errno
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedjax_collapse.core.records import Damaged, UserError
from fedjax_collapse.engine import State
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.history import History

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)  # errors that do not depend on the folder's name


def rounds_kept(folder: Path | str) -> tuple[int, ...]:
    """Returns the rounds of the folder's checkpoints, from which ``simulate`` could continue; 0 if there is none."""
    return Checkpoints(Path(folder) / "checkpoints").rounds or (0,)


def rounds_released(folder: Path) -> int:
    """Returns the last round that the folder has results of, whether or not the run can continue from there."""
    return max(*rounds_kept(folder), History.last_round(folder))


def common_round(kept: Iterable[Sequence[int]]) -> int:
    """Returns the last round for which all runs have a checkpoint; 0 if there is none."""
    return max(_common(kept), default=0)


def newest_whole(
    folders: Sequence[Path | None], stores: Sequence[Checkpoints | None], states: Sequence[State], measure_every: int
) -> tuple[int, list[State], list[History]]:
    """Returns round, states and histories from which runs continue; warns of damaged checkpoints, and changes nothing.

    Args:
        folders: of each run, None for runs without one; then all start from round 0.
        stores: the checkpoints in each folder.
        states: the initial state of each run.
        measure_every: see ``Schedule``.

    Raises:
        UserError: if there are checkpoints, but none is whole.
    """
    damages = []
    for round in sorted(_common(store.rounds if store else () for store in stores), reverse=True):
        try:
            loaded = [store.load(round, state) for store, state in zip(stores, states, strict=True)]
            notes = [notes for _, notes in loaded]
            histories = [History.read(f, round, of, measure_every) for f, of in zip(folders, notes, strict=True)]
        except Damaged as error:
            damages.append(str(error))
            continue
        for damage in damages:
            warnings.warn(f"{damage}; the run continues from round {round}, to the same results", stacklevel=2)
        return round, [state for state, _ in loaded], histories
    if damages:
        names = ", ".join(str(folder) for folder in folders)
        raise UserError(f"{'; '.join(damages)}; no checkpoint is whole: restore it, or remove {names} to start again")
    return 0, list(states), [History.read(folder, 0) if folder else History() for folder in folders]


def make_folder(folder: Path) -> None:
    """Creates the folder of a run.

    Raises:
        UserError: if its name or place is the reason that it cannot be created.
        OSError: if the disk is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _OF_THE_DISK:
            raise
        raise UserError(f"folder {folder}: cannot be made ({' '.join(str(error).split())}); choose another") from error


def _common(kept):
    return set.intersection(*map(set, kept))
