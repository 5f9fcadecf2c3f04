"""Hashes of the user's code that a run depends on, so that a run is not resumed with different code.

A user module belongs neither to this project nor to Python, and is not installed in ``site-packages``. The hash covers
the code, without comments, docstrings and layout, of each user module that defines a class or function of the run or
that such a module imports, directly or indirectly. In a script or notebook (``__main__``) only the definitions are
hashed, so that other lines may change. Imports by computed names are not followed.
"""

import ast
import contextlib
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
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_INSTALLED = ("site-packages", "dist-packages")


def source_hashes(*values: Any) -> dict[str, str]:
    """Returns the SHA-256 of each user module that defines classes or functions found anywhere in the values."""
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
    """Returns whether a module is a user module."""
    is_installed = any(path.is_relative_to(folder) for folder in _PYTHON) or any(p in path.parts for p in _INSTALLED)
    return name.partition(".")[0] not in _PROJECT and not is_installed


def file_of(name: str) -> Path | None:
    """Returns the file of a module, loaded or not; None if there is none. Imports nothing."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return Path(loaded)
    folders, spec = None, None
    for end in range(1, name.count(".") + 2):
        try:
            spec = PathFinder.find_spec(".".join(name.split(".")[:end]), folders)
        except (ImportError, ValueError):  # not the name of a module
            spec = None
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return Path(spec.origin) if spec.has_location and spec.origin else None


def hash_code(code: CodeType) -> str:
    """Returns the hash of a function's bytecode, the same in every process with the same version of Python."""
    constants = tuple(map(_constant, code.co_consts))
    return hashlib.sha256(code.co_code + repr((code.co_names, constants)).encode()).hexdigest()[:16]


def _constant(value):
    """Replaces values that differ between processes: the address in the ``repr`` of inner code, the order of a set."""
    if isinstance(value, CodeType):
        return hash_code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _definitions(value: Any, seen: set[int]) -> Iterator[type | Callable]:
    """Yields the classes and functions in a value and in everything that it contains."""
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
    elif hasattr(value, "__wrapped__"):  # for example a compiled function
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
    """Returns the files of a user module, of its parent packages, and of all user modules that they import."""
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
    """Yields the names that a file imports, at any place in it; some may not be modules."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = importlib.util.resolve_name("." * node.level + base, package)
                except ImportError:  # beyond the top-level package, which fails when the file is run
                    continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _parsed(path):
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # an extension module, or a file that has been removed meanwhile
        return ast.Module([], [])


def _hash_file(path: Path) -> str:
    """Returns the hash of a module's code without comments, docstrings and layout, or of a file that is no Python."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return type(error).__name__
    with contextlib.suppress(SyntaxError, ValueError):
        code = ast.parse(content)
        for node in ast.walk(code):
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        content = ast.unparse(code).encode()
    return hashlib.sha256(content).hexdigest()


def _hash_definitions(definitions) -> str:
    """Returns the hash of definitions in ``__main__`` and of the definitions there that they refer to."""
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
    """Returns the code of a function, wrapped or not, or of a property; None for anything else."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)


def _names(code):
    """Yields the names that code, and code within it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_plain(value):
    """Returns whether the value's ``repr`` is the same in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float, type(None)))
