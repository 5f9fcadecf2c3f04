"""Finds classes by the names of their files: a file holds one class, whose name equals the file's up to case and
underscores.

Files whose names begin with an underscore hold no such class. Folders are not part of a name.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType


def classes(package: ModuleType, kind: type) -> dict[str, type]:
    """Returns every subclass of ``kind`` in the package that is named after its file, by the name of the file."""
    found = {}
    for path, file in _files(package.__name__, package.__path__):
        for name, value in vars(importlib.import_module(path)).items():
            if _is_of(file, name) and inspect.isclass(value) and issubclass(value, kind):
                found[file] = value
    return found


def has_own_file(kind: type) -> bool:
    """Returns whether the file of the class is named after it."""
    return _is_of(kind.__module__.rpartition(".")[2], kind.__name__)


def _files(package, places):
    """Yields the module and the name of every file, also in folders."""
    for found in pkgutil.iter_modules(places):
        path = f"{package}.{found.name}"
        if found.ispkg:
            yield from _files(path, importlib.import_module(path).__path__)
        elif not found.name.startswith("_"):
            yield path, found.name


def _is_of(file, name):
    return name.lower() == file.replace("_", "")
