"""Checkpoints of a run's state, through Orbax: the only module that knows it.

A checkpoint is a folder named by its round. While the run continues it is written beside its place, with the SHA-256 of
each of its files, and moved there when the disk has it: it is whole from the moment at which it counts, and what
happens to it later is noticed before anything of it is used.

Orbax does not take two saves at once, so that one thread writes those of all runs of the process, one after another:
runs that go together are then never more than one checkpoint apart, and have one in common.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from fedjax_collapse.core import files
from fedjax_collapse.core.masks import by_path
from fedjax_collapse.core.records import Damaged, PyTree, UserError
from fedjax_collapse.storage.history import write_json

_KEPT = 2
_SEAL = "sha256.json"
_BESIDE = "new"  # what is being written or removed
_UNREADABLE = "[\\"  # Orbax writes below them and finds nothing there afterwards
_WRITER = futures.ThreadPoolExecutor(1, "checkpoints")
_WRITING: dict[Path, futures.Future] = {}  # by folder, what is on its way
_ORBAX = threading.Lock()  # of what is saved and what is loaded


def check_folder(folder: Path) -> None:
    """Raises UserError if checkpoints in the folder could not be written, or not be read again, as of paths with such
    characters."""
    try:
        os.fsencode(folder)
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise UserError(
            f"{str(folder)!a}: no folder can have that name where file names are {encoding}; "
            "choose a locale of UTF-8, such as LC_ALL=C.UTF-8, or other names"
        ) from None
    found = sorted(set(str(folder.absolute())) & set(_UNREADABLE))
    if found:
        raise UserError(f"{folder}: checkpoints cannot be in a path with {' or '.join(found)}; choose another folder")


class Checkpoints:
    """The checkpoints in a folder, by round; a save that is killed leaves the earlier ones intact.

    All but ``save`` wait until what was saved is there, whoever saved it in this process, and raise what went wrong
    with it.

    Raises:
        UserError: ``check_folder``'s.
    """

    def __init__(self, folder: Path):
        check_folder(folder)
        self._folder = folder.absolute()

    def wait(self) -> None:
        """Until all that was saved is written; an error is raised once."""
        if (writing := _WRITING.get(self._folder)) is not None:
            futures.wait([writing])  # where Ctrl-C may end it: then it is still known
            _WRITING.pop(self._folder, None)
            writing.result()

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of all checkpoints, in their order."""
        self.wait()
        return self._found()

    def _found(self):
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return tuple(sorted(int(path.name) for path in found if path.name.isdecimal()))

    def forget_after(self, round: int) -> None:
        """Deletes the checkpoints of later rounds, so that the run can continue from that one, and what a kill left."""
        for later in (kept for kept in self.rounds if kept > round):
            self._remove(later)
        shutil.rmtree(self._folder / _BESIDE, ignore_errors=True)

    def save(
        self,
        round: int,
        state: PyTree,
        notes: Mapping[str, Any],
        before: Callable[[], None] = lambda: None,
        must_wait: bool = False,
    ) -> None:
        """Saves a state with notes, which are JSON, unless there is a checkpoint of the round.

        It waits for the save before it, then a copy of the state is written while the run continues; what goes wrong is
        raised by what is asked for next.

        Args:
            before: called first, in the writer's thread: it writes what the checkpoint counts on.
            must_wait: the state itself is written, before the run continues.
        """
        self.wait()
        if not must_wait:
            state = jax.tree.map(lambda leaf: leaf.copy(), state)  # rounds write into it, or donate it
        _WRITING[self._folder] = _WRITER.submit(self._write, round, state, notes, before)
        if must_wait:
            self.wait()

    def _write(self, round, state, notes, before):
        before()
        if round in self._found():
            return
        with self._beside() as beside:
            new = beside / str(round)
            with _ORBAX:
                ocp.save(new, state)
            write_json(new / _SEAL, {"files": _hashes(new), "notes": notes})
            files.flush_all(new)
            os.replace(new, self._folder / str(round))
        files.flush([self._folder])
        for old in self._found()[:-_KEPT]:
            self._remove(old)

    def load(self, round: int, template: PyTree) -> tuple[PyTree, Mapping[str, Any] | None]:
        """The state of that round, with the structure and the placement of ``template``, and its notes.

        One that was written by an earlier version has no hashes and no notes, which are None then.

        Raises:
            Damaged: the checkpoint differs from what was written.
            UserError: it is of a state of another structure, shape or dtype.
        """
        self.wait()
        path = self._folder / str(round)
        notes = _check_seal(path)
        try:
            with _ORBAX:
                self._check_structure(path, template)
                return ocp.load(path, template), notes
        except UserError:
            raise
        except Exception as error:  # of a damaged file, Orbax raises whatever it runs into
            if notes is not None:
                raise
            raise Damaged(f"{path}: not a readable checkpoint ({type(error).__name__})") from error

    def _check_structure(self, path, template):
        stored, expected = _describe(ocp.metadata(path).metadata), _describe(template)
        if not stored:  # so Orbax says that it could not read them
            raise ValueError("no metadata")
        for name in sorted(stored.keys() | expected.keys()):
            if stored.get(name) != expected.get(name):
                raise UserError(
                    f"{self._folder}, round {path.name}: {name} is {stored.get(name, 'absent')}, "
                    f"this run needs {expected.get(name, 'none')}; use a new folder"
                )

    def _remove(self, round):
        """In one step: a kill leaves a whole checkpoint or none."""
        with self._beside() as beside:
            os.replace(self._folder / str(round), beside / str(round))

    @contextlib.contextmanager
    def _beside(self):
        """An empty folder in which nothing counts."""
        beside = self._folder / _BESIDE
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            yield beside
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _check_seal(path):
    """The notes of a checkpoint whose files are as they were written; None if nothing says how they were."""
    seal = path / _SEAL
    if not seal.exists():
        return None
    try:
        content = json.loads(files.read(seal))
        hashes, notes = dict(content["files"]), dict(content["notes"])
        found = _hashes(path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{seal}: cannot be checked ({type(error).__name__})") from error
    wrong = sorted(name for name in hashes.keys() | found.keys() if hashes.get(name) != found.get(name))
    if wrong:
        raise Damaged(f"{path / wrong[0]}: {'differs from what was written' if wrong[0] in found else 'is missing'}")
    return notes


def _hashes(path):
    """Of every file of a checkpoint but the one that they are written into."""
    hashes = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file != path / _SEAL):
        with file.open("rb") as stream:
            hashes[file.relative_to(path).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


def _describe(tree):
    """Shape and dtype of every array by its path; random keys as the integers that they are stored as."""
    described = {}
    for path, leaf in by_path(tree).items():
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        described[path] = f"{leaf.dtype}{list(leaf.shape)}"
    return described
