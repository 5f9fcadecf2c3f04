"""A room is a package with one class a file, of the file's name up to case and underscores: no list names them."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType


def classes(room: str, kind: type) -> dict[str, type]:
    """Every class of that kind in the room, by the name of its file."""
    found = {}
    for file, content in _modules(room):
        for name, value in vars(content()).items():
            if _is_of(file, name) and inspect.isclass(value) and issubclass(value, kind):
                found[file] = value
    return found


def class_named(module: str, name: str, rooms: tuple[str, ...] = ("",)) -> type:
    """The class of that name in one of the module's rooms, by default itself; for its ``__getattr__``.

    Raises:
        AttributeError: there is none.
    """
    for room in rooms if name[:1].isupper() else ():
        for file, content in _modules(f"{module}.{room}".rstrip(".")):
            if _is_of(file, name) and inspect.isclass(value := vars(content()).get(name)):
                return value
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _modules(room: str) -> Iterator[tuple[str, Callable[[], ModuleType]]]:
    """The name of every file, and what imports it."""
    for found in pkgutil.iter_modules(importlib.import_module(room).__path__):
        yield found.name, lambda name=found.name: importlib.import_module(f"{room}.{name}")


def _is_of(file, name):
    return name.lower() == file.replace("_", "")
