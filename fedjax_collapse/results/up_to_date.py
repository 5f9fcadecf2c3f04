"""Which files the report of a study was made from, so that nothing is done again for files that are unchanged."""

import functools
import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import fedjax_collapse
from fedjax_collapse.config.folder import CHECKPOINTS, EXPORT, LOCK, MADE_FROM, NUMBERS, REPLACED, REPORT, START_LOCK
from fedjax_collapse.core import files
from fedjax_collapse.core.rows import write_json

_LEFT_OUT = {CHECKPOINTS, EXPORT, LOCK, START_LOCK, REPLACED, MADE_FROM}  # names of files and folders
_SOURCES = (".py", ".css", ".js", ".jinja")
_PACKAGES = ("matplotlib", "numpy", "pandas", "jinja2")  # the text of a report depends on them

Stamps = dict[str, list[int]]  # size and time of the last change in nanoseconds, by the file's path in the study


class MadeFrom(NamedTuple):
    """The code and the files that a report was made from; empty if unknown."""

    code: str
    stamps: Stamps

    def is_unchanged(self, study: Path, run: Path) -> bool:
        """Returns whether the files of a run are unchanged since the report was written."""
        inside = f"{run.relative_to(study).as_posix()}/"
        of_run = {path: stamp for path, stamp in self.stamps.items() if path.startswith(inside)}
        return bool(of_run) and of_run == {f"{inside}{path}": stamp for path, stamp in stamps(run).items()}

    def is_current(self, now: Stamps) -> bool:
        """Returns whether the report, and all from which it was made, is unchanged."""
        return self.code == code() and self.stamps == now and REPORT in now


def stamps(folder: Path) -> Stamps:
    """Returns the stamps of all files below the folder, except for checkpoints, exported files and locks."""
    inside = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    found = {path.as_posix(): of.lstat() for path, of in sorted(inside.items()) if not {*path.parts} & _LEFT_OUT}
    return {path: [status.st_size, status.st_mtime_ns] for path, status in found.items()}


@functools.cache
def code() -> str:
    """Returns a hash of the library's source and of the versions of packages, on which reports depend."""
    hashed = hashlib.sha256(json.dumps([metadata.version(name) for name in _PACKAGES]).encode())
    folder = Path(fedjax_collapse.__file__).parent
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def read_made_from(study: Path) -> MadeFrom:
    """Returns the record in the study's folder; empty if it is missing or unreadable."""
    try:
        record: Any = json.loads(files.read(study / NUMBERS / MADE_FROM))
        return MadeFrom(str(record["code"]), dict(record["stamps"]))
    except (OSError, ValueError, TypeError, KeyError):
        return MadeFrom("", {})


def record_made_from(study: Path, before: Stamps) -> None:
    """Records that the report was made from the files with the stamps ``before``, and the stamps of its own files."""
    written = {path: stamp for path, stamp in stamps(study).items() if _is_of_report(path)}
    of_study = {path: stamp for path, stamp in before.items() if not _is_of_report(path)}
    (study / NUMBERS).mkdir(exist_ok=True)
    write_json(study / NUMBERS / MADE_FROM, MadeFrom(code(), of_study | written)._asdict())


def _is_of_report(path: str) -> bool:
    return path == REPORT or path.startswith(f"{NUMBERS}/")
