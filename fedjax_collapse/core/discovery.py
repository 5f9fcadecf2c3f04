"""Finds classes by the names of their files: a file holds one class, whose name equals the file's up to case and
underscores.

Files whose names begin with an underscore are shared by others and hold no such class.
"""

import importlib
import inspect
import pkgutil
from types import ModuleType


def classes(package: ModuleType, kind: type) -> dict[str, type]:
    """Returns every subclass of ``kind`` in the package that is named after its file, by the name of the file."""
    found = {}
    for file in _files(package):
        for name, value in vars(_module(package, file)).items():
            if _is_of(file, name) and inspect.isclass(value) and issubclass(value, kind):
                found[file] = value
    return found


def has_own_file(kind: type) -> bool:
    """Returns whether the class is the one that its file is named after."""
    return _is_of(kind.__module__.rpartition(".")[2], kind.__name__)


def _files(package):
    return [file.name for file in pkgutil.iter_modules(package.__path__) if not file.name.startswith("_")]


def _module(package, file):
    return importlib.import_module(f"{package.__name__}.{file}")


def _is_of(file, name):
    return name.lower() == file.replace("_", "")
