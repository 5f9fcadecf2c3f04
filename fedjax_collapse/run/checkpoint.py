"""Checkpoints of a run's state, written by Orbax; no other module uses Orbax.

A checkpoint is a folder named by its round. It is written to a temporary folder while the run continues, with the
SHA-256 of each of its files, and moved to its place once it is on the disk. So a visible checkpoint is complete, and
later damage to it is noticed before it is used.

Orbax does not support concurrent saves, so one thread writes the checkpoints of all runs of the process, one after
another. Batched runs are therefore never more than one checkpoint apart, and always have one in common.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from fedjax_collapse.core import files
from fedjax_collapse.core.masks import by_path
from fedjax_collapse.core.records import Damaged, PyTree, UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.engine.placement import copied

_NUM_STORED = 2
_SEAL = "sha256.json"
_TEMPORARY = "new"  # the folder of checkpoints that are being written or removed
_UNREADABLE = "[\\"  # Orbax writes to paths with these characters but cannot read from them
_WRITER = futures.ThreadPoolExecutor(1, "checkpoints")
_WRITING: dict[Path, futures.Future] = {}  # by folder, the save in progress
_ORBAX = threading.Lock()  # held while saving and while loading


def check_folder(folder: Path) -> None:
    """Raises UserError if checkpoints in the folder could not be written, or not be read again, because of its name."""
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
    """The checkpoints in a folder, by round; a kill during a save leaves the earlier ones intact.

    All methods but ``save`` wait until earlier saves of this process are written, and raise their errors.

    Raises:
        UserError: as ``check_folder``.
    """

    def __init__(self, folder: Path):
        check_folder(folder)
        self._folder = folder.absolute()

    def wait(self) -> None:
        """Waits until all saves are written; their error is raised once."""
        if (writing := _WRITING.get(self._folder)) is not None:
            futures.wait([writing])  # if Ctrl-C interrupts this, the save is still in _WRITING
            _WRITING.pop(self._folder, None)
            writing.result()

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of all checkpoints, in ascending order."""
        self.wait()
        return self._found()

    def _found(self):
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return tuple(sorted(int(path.name) for path in found if path.name.isdecimal()))

    def forget_after(self, round: int) -> None:
        """Deletes the checkpoints of later rounds, and the remains of a kill, so that the run can continue."""
        for later in (kept for kept in self.rounds if kept > round):
            self._remove(later)
        shutil.rmtree(self._folder / _TEMPORARY, ignore_errors=True)

    def save(
        self,
        round: int,
        state: PyTree,
        notes: Mapping[str, Any],
        before: Sequence[Callable[[], None]] = (),
        must_wait: bool = False,
    ) -> None:
        """Saves a state, unless there is a checkpoint of the round already.

        Waits for the previous save, then writes a copy of the state while the run continues; errors are raised by the
        next call.

        Args:
            round: the number of rounds done.
            state: the state.
            notes: JSON that is stored with it.
            before: called first, in the writer's thread, to write the files that the checkpoint depends on.
            must_wait: whether to write the state itself, without a copy, before returning.
        """
        self.wait()
        state = state if must_wait else copied(state)  # rounds change or donate the state
        _WRITING[self._folder] = _WRITER.submit(self._write, round, state, notes, before)
        if must_wait:
            self.wait()

    def _write(self, round, state, notes, before):
        for call in before:
            call()
        if round in self._found():
            return
        with self._temporary() as temporary:
            new = temporary / str(round)
            with _ORBAX:
                ocp.save(new, state)
            write_json(new / _SEAL, {"files": _hashes(new), "notes": notes})
            files.flush([*new.rglob("*"), new])
            os.replace(new, self._folder / str(round))
        files.flush([self._folder])
        for old in self._found()[:-_NUM_STORED]:
            self._remove(old)

    def load(self, round: int, template: PyTree) -> tuple[PyTree, Mapping[str, Any]]:
        """Returns the state of a round, with the structure and the placement of ``template``, and its notes.

        Raises:
            Damaged: the checkpoint differs from what was written.
            UserError: it has another structure, shape or dtype.
        """
        self.wait()
        path = self._folder / str(round)
        notes = _check_seal(path)
        with _ORBAX:
            self._check_structure(path, template)
            return ocp.load(path, template), notes

    def _check_structure(self, path, template):
        stored, expected = _describe(ocp.metadata(path).metadata), _describe(template)
        if not stored:  # how Orbax reports metadata that it could not read
            raise ValueError("no metadata")
        for name in sorted(stored.keys() | expected.keys()):
            if stored.get(name) != expected.get(name):
                raise UserError(
                    f"{self._folder}, round {path.name}: {name} is {stored.get(name, 'absent')}, "
                    f"this run needs {expected.get(name, 'none')}; use a new folder"
                )

    def _remove(self, round):
        """Removes a checkpoint atomically: a kill leaves all of it or nothing."""
        with self._temporary() as temporary:
            os.replace(self._folder / str(round), temporary / str(round))

    @contextlib.contextmanager
    def _temporary(self):
        """An empty folder whose content is ignored by readers."""
        temporary = self._folder / _TEMPORARY
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _check_seal(path):
    """Returns the notes of a checkpoint whose files match their hashes."""
    seal = path / _SEAL
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
    """Returns the SHA-256 of every file of a checkpoint except the file that stores them."""
    hashes = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file != path / _SEAL):
        with files.reading(file) as stream:
            hashes[file.relative_to(path).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


def _describe(tree):
    """Returns shape and dtype of every array by its path; random keys appear as the integers that represent them."""
    described = {}
    for path, leaf in by_path(tree).items():
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        described[path] = f"{leaf.dtype}{list(leaf.shape)}"
    return described
