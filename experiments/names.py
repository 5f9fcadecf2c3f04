"""From the names in a config to code: the only place where strings become classes and functions.

A name is a module's: ``feddecorr`` is the class of ``fedjax_collapse/regularizers/feddecorr.py`` whose name is the
module's, up to case and underscores. There is no registry; a new file is found by its name. A module without such a
class is no choice. ``my_module:MyClass`` is one of the user's own, from a file beside the config, in the current
folder, or installed.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flax.linen import Module

from fedjax_collapse import algorithms, nn, regularizers, uploads
from fedjax_collapse.method import Method
from fedjax_collapse.records import UserError

_KINDS = {
    "network": ((nn,), Module),
    "algorithm": ((algorithms,), Method),
    "regularizer": ((regularizers,), Method),
    "method": ((algorithms, regularizers, uploads), Method),
}
_TYPES = {float: (int, float), int: (int,), str: (str,), bool: (bool,), tuple: (tuple, list)}


def class_named(what: str, name: str) -> type:
    """The network or method of that name: of a module of its room, or the user's own.

    Raises:
        UserError: there is none, or it is another kind of thing.
    """
    if ":" in name:
        found, kind = imported(what, name), _KINDS[what][1]
        if not (inspect.isclass(found) and issubclass(found, kind)):
            raise UserError(f"{what} {name!r}: expected a class derived from {kind.__module__}.{kind.__name__}")
        return found
    found = classes(what)
    check_name(what, name, found)
    return found[name]


def classes(what: str) -> dict[str, type]:
    """Every class of that kind that is named as its module, by the module's name."""
    packages, kind = _KINDS[what]
    found = {}
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__):
            content = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            for name, value in content.items():
                is_its_own = name.lower() == module.name.replace("_", "")
                if is_its_own and inspect.isclass(value) and issubclass(value, kind):
                    found[module.name] = value
    return found


def function_named(what: str, module: Any, name: str) -> Callable:
    """The public function ``name`` of ``module``, or the user's own."""
    if ":" in name:
        return callable_named(what, name)
    found = functions(module)
    check_name(what, name, found)
    return found[name]


def functions(module: Any) -> dict[str, Callable]:
    """The public functions that ``module`` defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def callable_named(what: str, name: str) -> Callable:
    """The user's own function, or whatever can be called."""
    found = imported(what, name)
    if not callable(found):
        raise UserError(f"{what} {name!r}: it is a {type(found).__name__}, expected a function")
    return found


def imported(what: str, name: str) -> Any:
    """What ``module:name`` says.

    Raises:
        UserError: it cannot be imported, whatever the reason.
    """
    module, _, attribute = name.partition(":")
    try:
        content = vars(importlib.import_module(module))
    except Exception as error:  # of the user's code
        raise UserError(f"{what} {name!r}: {module} cannot be imported ({type(error).__name__}: {error})") from error
    check_name(f"name in {module}, of {what},", attribute, (key for key in content if not key.startswith("_")))
    return content[attribute]


def call(what: str, function: Callable, arguments: Mapping[str, Any], **given: Any) -> Any:
    """``function(**arguments, **given)``; a UserError for an argument that it does not take, or lacks."""
    accepted = {name: p for name, p in inspect.signature(function).parameters.items() if name not in given}
    accepted = {name: p for name, p in accepted.items() if name not in ("parent", "name")}  # Linen's own
    for name, value in arguments.items():
        check_name(f"option of {what}", name, accepted)
        check_type(f"{what}.{name}", value, accepted[name].annotation)
    for name, parameter in accepted.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"{what}.{name} is missing: {getattr(function, '__name__', function)} needs it")
    return function(**arguments, **given)


def check_type(name: str, value: Any, annotation: Any) -> None:
    """Raises UserError if the value is not of a plain type; a number may be given as an int.

    Annotations that are not plain, or None beside a plain one, are taken as they come.
    """
    if hasattr(annotation, "__args__") and type(None) in annotation.__args__:
        if value is None:
            return
        annotation = next(kind for kind in annotation.__args__ if kind is not type(None))
    expected = _TYPES.get(annotation)
    if expected and (not isinstance(value, expected) or (isinstance(value, bool) and annotation is not bool)):
        raise UserError(f"{name} {value!r}: expected {annotation.__name__}, got {type(value).__name__}")


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """Raises UserError with the nearest valid name."""
    valid = sorted(valid)
    if name in valid:
        return
    nearest = difflib.get_close_matches(name, valid, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise UserError(f"unknown {what} {name!r}: {guess}expected one of {', '.join(valid) or '(none)'}")
