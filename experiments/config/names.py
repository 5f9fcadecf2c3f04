"""From the names in a config to code: the only place where strings become classes and functions.

A name is a module's: ``feddecorr`` is the class of ``fedjax_collapse/methods/feddecorr.py`` whose name is the
module's, up to case and underscores. There is no registry; a new file is found by its name. A module without such a
class is no choice. ``my_module:MyClass`` is one of the user's own, from a file beside the config, in the current
folder, or installed.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from flax.linen import Module

from experiments.study.failures import explain, is_interrupt
from fedjax_collapse import methods
from fedjax_collapse.core import discovery, user_code
from fedjax_collapse.core.options import WithOptions, check_value, hints, with_options
from fedjax_collapse.core.records import UserError
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn import heads, networks
from fedjax_collapse.nn.network import Network

_KINDS = {"network": (networks, Module), "head": (heads, Module), "method": (methods, Method)}
_MOVED = {  # config keys of earlier versions
    "algorithm": "methods=dict(NAME=dict(...)), server.weighting, server.optimized, or private",
    "regularizers": "methods",
    "server_optimizer": "server.optimizer",
    "batch_norm": "server.batch_norm",
    "schedule_factor": "training.schedule=dict(name='decay', factor=...)",
    "schedule_rounds": "training.schedule=dict(name='cosine', rounds=...)",
    "rule": "cohort.sampler=dict(name=...), such as uniform, by_size or available",
    "availability": "cohort.sampler=dict(name='available', probability=...)",
    "availability_period": "cohort.sampler=dict(name='available', period=...)",
    **{key: f"cohort.clock.{key}" for key in ("step_seconds", "step_spread", "upload_seconds", "deadline")},
}
_MANY = 25  # names, which a line does not list beside the nearest one


def class_named(what: str, name: str) -> type:
    """The network, head or method of that name: of a module of its package, or the user's own.

    Raises:
        UserError: there is none, or it is another kind of thing.
    """
    check_value(what, name, str)
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
    return discovery.classes(*_KINDS[what])


def network(name: str, options: Mapping[str, Any], num_classes: int) -> Module:
    """The network of that name with its options.

    Raises:
        UserError: there is none, or an option, or its head, is not what it may be.
    """
    kind = class_named("network", name)
    if "head" in options and issubclass(kind, Network):
        options = {**options, "head": head_of(options["head"])}
    return call("network", kind, options, num_classes=num_classes)


def head_of(value: Any) -> type[Module] | WithOptions:
    """What makes the head that ``network.head`` says: a name, or a dict of a name and options.

    Raises:
        UserError: there is no such head or option.
    """
    check_value("network.head", value, str | dict)
    options = dict(value) if isinstance(value, dict) else {"name": value}
    if "name" not in options:
        raise UserError("network.head has no name: expected dict(name=...) with its options next to it")
    kind = class_named("head", options.pop("name"))
    num_classes, *_ = inspect.signature(kind).parameters
    check_arguments("network.head", kind, options, {num_classes: None})
    return with_options(kind, **{name: _as_tuple(option) for name, option in options.items()}) if options else kind


def function_named(what: str, module: Any, name: str) -> Callable:
    """The public function ``name`` of ``module``, or the user's own."""
    check_value(what, name, str)
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
    check_value(what, name, str)
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise UserError(f"{what} {name!r}: expected module:name, as my_module:MyClass")
    try:
        content = vars(importlib.import_module(module))
    except BaseException as error:  # of the user's code
        if is_interrupt(error):
            raise
        raise UserError(f"{what} {name!r}: {module} cannot be imported ({explain(error)})") from error
    where = content.get("__file__") or "built into Python"  # a file of the user's may be named as another one
    choices = (key for key in content if not key.startswith("_"))
    check_name(f"name in {module} ({where}), of {what},", attribute, choices)
    return content[attribute]


def call(what: str, function: Callable, arguments: Mapping[str, Any], **given: Any) -> Any:
    """``function(**arguments, **given)``, whose lists are tuples, as code that is compiled for them needs it.

    Raises:
        UserError: an argument that the function does not take, lacks, or that is not what its annotation says; or
            whatever goes wrong in it.
    """
    check_arguments(what, function, arguments, given)
    try:
        return function(**{name: _as_tuple(value) for name, value in arguments.items()}, **given)
    except BaseException as error:
        raise explained(what, error) from error


def check_arguments(
    what: str, function: Callable, arguments: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raises UserError for an argument that the function does not take, lacks beside the given ones, or that is not
    what its annotation says."""
    try:
        accepted = {name: p for name, p in inspect.signature(function).parameters.items() if name not in given}
    except ValueError:  # of some built-in functions
        raise UserError(f"{what}: {function} has no signature to inspect; give a Python function") from None
    accepted = {name: p for name, p in accepted.items() if name not in ("parent", "name")}  # Linen's own
    annotations = hints(function)
    for name, value in arguments.items():
        check_key(f"option of {what}", name, accepted)
        check_value(f"{what}.{name}", value, annotations[name])
    for name, parameter in accepted.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"{what}.{name} is missing: {getattr(function, '__name__', function)} needs it")


def explained(what: str, error: BaseException) -> UserError:
    """``user_code.explained``, also of code that leaves the process; Ctrl-C is raised again."""
    if is_interrupt(error):
        raise error
    return user_code.explained(what, error)


def _as_tuple(value):
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


def check_key(what: str, key: str, valid: Iterable[str]) -> None:
    """``check_name`` of a config key; one of an earlier version is told by its new name."""
    if key in _MOVED and key not in (valid := list(valid)):
        raise UserError(f"{what} {key!r}: it is {_MOVED[key]} now")
    check_name(what, key, valid)


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """Raises UserError with the nearest valid name, and all of them unless it is one of very many."""
    valid = sorted(valid)
    if name in valid:
        return
    nearest = difflib.get_close_matches(str(name), valid, n=1)
    guess = [f"did you mean {nearest[0]!r}?"] if nearest else []
    choices = [] if nearest and len(valid) > _MANY else [f"expected one of {', '.join(valid) or '(none)'}"]
    raise UserError(f"unknown {what} {name!r}: {' '.join(guess + choices)}")
