"""Which files the report of a study was made from, so that nothing is done again for files that are unchanged."""

import functools
import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import fedjax_collapse
from fedjax_collapse.config.folder import CHECKPOINTS, EXPORT, LOCK, MADE_FROM, NUMBERS, REPLACED, REPORT, START_LOCK
from fedjax_collapse.core import files
from fedjax_collapse.core.rows import write_json

_LEFT_OUT = {CHECKPOINTS, EXPORT, LOCK, START_LOCK, REPLACED, MADE_FROM}  # names of files and folders
_SOURCES = (".py", ".css", ".js", ".jinja")
_PACKAGES = ("matplotlib", "numpy", "pandas", "jinja2")  # the text of a report depends on them
_CODE = ""  # the key of the code

Stamps = dict[str, Any]  # size and time of the last change in nanoseconds, by the file's path in the study


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


def made_from(study: Path) -> Stamps:
    """Returns the stamps that the report was made from, with the code; empty if they are missing or unreadable."""
    try:
        return dict(json.loads(files.read(study / NUMBERS / MADE_FROM)))
    except (OSError, ValueError, TypeError):
        return {}


def is_unchanged(made_from: Stamps, study: Path, run: Path) -> bool:
    """Returns whether the files of a run are unchanged since the report was made from these stamps."""
    inside = f"{run.relative_to(study).as_posix()}/"
    of_run = {path: stamp for path, stamp in made_from.items() if path.startswith(inside)}
    return bool(of_run) and of_run == {f"{inside}{path}": stamp for path, stamp in stamps(run).items()}


def is_current(study: Path, now: Stamps) -> bool:
    """Returns whether the report, and all from which it was made, is unchanged."""
    return REPORT in now and made_from(study) == now | {_CODE: code()}


def record_made_from(study: Path, before: Stamps) -> None:
    """Records that the report was made from the files with the stamps ``before``, and the stamps of its own files."""
    of_report = (REPORT, f"{NUMBERS}/")
    written = {path: stamp for path, stamp in stamps(study).items() if path.startswith(of_report)}
    of_study = {path: stamp for path, stamp in before.items() if not path.startswith(of_report)}
    (study / NUMBERS).mkdir(exist_ok=True)
    write_json(study / NUMBERS / MADE_FROM, of_study | written | {_CODE: code()})
