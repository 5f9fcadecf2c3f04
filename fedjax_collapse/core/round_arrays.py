"""Arrays with a row per round on disk: first as segments of consecutive rounds, later merged into one file.

A run's folder stores a kind of arrays, such as ``clients``, in segments ``clients/000011.npz``, named by their first
rounds, or merged in ``clients.npz``; or in both, if a finished run continues or was killed while merging. Readers
prefer the merged file, and files are written atomically, so that no round is lost or read twice.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_collapse.core import files
from fedjax_collapse.core.records import Damaged, UserError

Arrays = dict[str, np.ndarray]  # "round" [rounds], others [rounds, ...]


def read_arrays(folder: Path, kind: str, until: float = math.inf) -> Arrays:
    """Returns the arrays of a run, finished or not, up to a round; empty if there are none.

    Raises:
        Damaged: one of the files cannot be read, or does not continue from the rounds before it.
    """
    merged = folder / f"{kind}.npz"
    segments = [path for path in _segments(folder, kind) if int(path.stem) <= until]
    # the merged file last, since the run may be finishing right now
    found = {path: _read_rounds(path) for path in (*segments, merged)}
    blocks: list[Arrays] = []
    for path in (merged, *segments):
        if arrays := between(found[path], blocks[-1]["round"][-1] if blocks else 0, until):
            try:
                check_alike(kind, arrays, blocks)
            except UserError as error:
                raise Damaged(f"{path}: does not continue from the rounds before it: {error}") from None
            blocks.append(arrays)
    return join(blocks)


def write_segment(folder: Path, kind: str, arrays: Arrays) -> None:
    """Writes the arrays of rounds that are not on the disk yet."""
    (folder / kind).mkdir(exist_ok=True)
    files.flush([folder])
    write_npz(folder / kind / f"{int(arrays['round'][0]):06d}.npz", arrays)


def merge_segments(folder: Path, kind: str, arrays: Arrays) -> None:
    """Writes all arrays of a kind as one file in place of the segments; a second call finishes an interrupted merge."""
    if _segments(folder, kind):
        write_npz(folder / f"{kind}.npz", arrays)
    shutil.rmtree(folder / kind, ignore_errors=True)  # files that cannot be removed do no harm


def forget_after(folder: Path, kind: str, round: int) -> None:
    """Removes later rounds from the segments and the merged file."""
    for path in (*_segments(folder, kind), folder / f"{kind}.npz"):
        is_later = path.stem.isdecimal() and int(path.stem) > round
        arrays = {} if is_later or not round else _read_rounds(path)
        kept = between(arrays, until=round)
        if not kept:
            path.unlink(missing_ok=True)
        elif len(kept["round"]) < len(arrays["round"]):
            write_npz(path, kept)


def check_alike(kind: str, arrays: Arrays, before: Sequence[Arrays]) -> None:
    """Raises UserError if names or shapes differ from the previous block's."""
    for name in arrays.keys() | before[-1].keys() if before else ():
        old, new = (np.shape(block[name])[1:] if name in block else None for block in (before[-1], arrays))
        if new != old:
            was, is_ = ("is absent" if shape is None else f"has shape {shape}" for shape in (old, new))
            rounds = int(before[-1]["round"][-1]), int(arrays["round"][0])
            raise UserError(
                f"{kind}: array {name!r} {was} in round {rounds[0]} and {is_} in round {rounds[1]}, "
                "expected the same arrays in every round"
            )


def join(blocks: Sequence[Arrays]) -> Arrays:
    """Concatenates blocks of consecutive rounds; empty if there are none."""
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]} if blocks else {}


def between(arrays: Arrays, after: float = 0, until: float = math.inf) -> Arrays:
    """Returns the rounds after ``after`` and up to ``until``; empty if there are none."""
    if not arrays:
        return {}
    keep = (arrays["round"] > after) & (arrays["round"] <= until)
    return {name: values[keep] for name, values in arrays.items()} if keep.any() else {}


def read_npz(path: Path) -> Arrays:
    """Returns the named arrays of a file; empty if it does not exist.

    Raises:
        Damaged: it cannot be read.
    """
    try:
        with files.reading(path) as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        return {}
    except Exception as error:  # zipfile and NumPy raise many kinds of exceptions for a damaged file
        raise Damaged(f"{path}: not a readable .npz file ({type(error).__name__})") from error


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes named arrays atomically: a reader sees the old file or the new one."""
    with files.whole(path) as file:
        np.savez_compressed(file, **arrays)


def _segments(folder, kind):
    paths = (path for path in (folder / kind).glob("*.npz") if path.stem.isdecimal())
    return sorted(paths, key=lambda path: int(path.stem))


def _read_rounds(path):
    arrays = read_npz(path)
    if arrays and ("round" not in arrays or arrays["round"].dtype.kind not in "iu" or arrays["round"].ndim != 1):
        raise Damaged(f"{path}: has no array 'round' of whole numbers")
    if arrays and np.any(arrays["round"][:-1] >= arrays["round"][1:]):
        raise Damaged(f"{path}: its rounds are not in ascending order")
    for name, values in arrays.items():
        if values.shape[:1] != arrays["round"].shape:
            raise Damaged(f"{path}: {name!r} has shape {values.shape}, expected a row for each of its rounds")
    return arrays
