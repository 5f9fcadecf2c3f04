"""Hashes of the user's own code that a run depends on, so that a run is not resumed with other code than it began with.

The user's modules are those that are neither part of this project, nor of Python, nor installed in ``site-packages``.
Of each module that defines a class or function of the run, and of each module of the user's that these import, at any
depth, the file is hashed. What is defined in a script or notebook (``__main__``) is hashed definition by definition,
so that other lines of it may change. Imports by computed names are not followed.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_PROJECT = ("fedjax_collapse", "experiments", "fedjax_collapse_programs")
_PYTHON = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


def source_hashes(*values: Any) -> dict[str, str]:
    """SHA-256 by module of the user's code behind classes and functions anywhere in the values."""
    files, in_main, visited = {}, [], set()
    for definition in _definitions(values, set()):
        name = getattr(definition, "__module__", None) or ""
        if name == "__main__":
            in_main.append(definition)
        elif name not in visited:
            visited.add(name)
            files |= _imported_files(name)
    hashes = {name: _hash_file(path) for name, path in sorted(files.items())}
    return hashes | ({"__main__": _hash_definitions(in_main)} if in_main else {})


def is_users(name: str, path: Path) -> bool:
    """Whether the module of that name and file is the user's own."""
    is_installed = any(path.is_relative_to(folder) for folder in _PYTHON) or any(p in path.parts for p in _INSTALLED)
    return name.partition(".")[0] not in _PROJECT and not is_installed


def file_of(name: str) -> Path | None:
    """The file of a module, loaded or not; None if there is none. Nothing is imported."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return Path(loaded)
    folders, spec = None, None
    for end in range(1, name.count(".") + 2):
        try:
            spec = PathFinder.find_spec(".".join(name.split(".")[:end]), folders)
        except (ImportError, ValueError):  # of what is no name of a module
            spec = None
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return Path(spec.origin) if spec.has_location and spec.origin else None


def hash_code(code: CodeType) -> str:
    """The hash of what a function does, the same in every process of one version of Python."""
    constants = tuple(map(_constant, code.co_consts))
    return hashlib.sha256(code.co_code + repr((code.co_names, constants)).encode()).hexdigest()[:16]


def _constant(value):
    """The constant without what differs between processes: the address in the ``repr`` of inner code."""
    if isinstance(value, CodeType):
        return hash_code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _definitions(value: Any, seen: set[int]) -> Iterator[type | Callable]:
    """The classes and functions of a value and of all that is in it."""
    if id(value) in seen or value is None or isinstance(value, (str, bytes, int, float)):
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        yield value
        yield from _definitions_of_all((cell.cell_contents for cell in value.__closure__ or ()), seen)
    elif inspect.isclass(value):
        yield from value.__mro__
    elif inspect.ismethod(value):
        yield from _definitions_of_all((value.__func__, value.__self__), seen)
    elif hasattr(value, "__wrapped__"):  # a compiled function, say
        yield from _definitions(value.__wrapped__, seen)
    else:
        yield from type(value).__mro__
        yield from _definitions_of_all(_parts(value), seen)


def _parts(value):
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, functools.partial):  # also JAX's
        return value.func, *value.args, *value.keywords.values()
    return value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()


def _definitions_of_all(values, seen):
    for value in values:
        yield from _definitions(value, seen)


def _imported_files(name: str) -> dict[str, Path]:
    """The files of the user's module of that name, its parent packages, and all of the user's that they import."""
    found: dict[str, Path] = {}
    to_visit = [name]
    while to_visit:
        name = to_visit.pop()
        path = file_of(name)
        if name not in found and path is not None and is_users(name, path):
            found[name] = path
            to_visit += _imports(name, path)
        if parent := name.rpartition(".")[0]:
            to_visit.append(parent)
    return found


def _imports(name: str, path: Path) -> Iterator[str]:
    """Names that may be modules which the file imports, wherever in it it does."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = importlib.util.resolve_name("." * node.level + base, package)
                except ImportError:  # beyond the top, which fails when it is run
                    continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _parsed(path):
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # of an extension module, of a file that was removed meanwhile
        return ast.Module([], [])


def _hash_file(path):
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return type(error).__name__


def _hash_definitions(definitions) -> str:
    """The hash of definitions of ``__main__`` and of all that they name there."""
    names, described = dict(vars(sys.modules["__main__"])), {}
    to_visit = {definition.__qualname__: definition for definition in definitions}
    while to_visit:
        name, value = to_visit.popitem()
        if name in described:
            continue
        members = vars(value) if inspect.isclass(value) else {"": value}
        codes = {key: code for key, member in members.items() if (code := _code_of(member)) is not None}
        plain = {key: repr(member) for key, member in members.items() if _is_plain(member) and key[:2] != "__"}
        described[name] = {key: hash_code(code) for key, code in codes.items()} | plain
        named = {name for code in codes.values() for name in _names(code) if name in names}
        for name in named:
            if getattr(names[name], "__module__", None) == "__main__" and hasattr(names[name], "__qualname__"):
                to_visit[name] = names[name]
            elif _is_plain(names[name]):
                described[name] = repr(names[name])
    return hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()


def _code_of(member):
    """The code of a function, also of one that is wrapped, or of a property; None of anything else."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)


def _names(code):
    """The names that code, and code within it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_plain(value):
    """Whether its ``repr`` is the same in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float, type(None)))
