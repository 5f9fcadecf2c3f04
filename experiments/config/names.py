"""Turns names in a config into code; no other module makes classes and functions from strings.

A name is a module's: ``feddecorr`` is the class of ``methods/collapse/feddecorr.py`` whose name equals the module's, up
to case and underscores. There is no registry; a new file is found by its name. A module without such a class is not a
choice. ``my_module:MyClass`` is a custom class, from a file next to the config, in the current folder,
or installed.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flax.linen import Module

from experiments.config.errors import explain, is_interrupt
from experiments.configs import base
from fedjax_collapse import methods
from fedjax_collapse.core.records import UserError
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn import heads, networks
from fedjax_collapse.nn.network import Network
from fedjax_collapse.schema import discovery, user_code
from fedjax_collapse.schema.options import WithOptions, check_value, hints, with_options

_KINDS = {"network": (networks, Module), "head": (heads, Module), "method": (methods, Method)}
_RENAMED = {  # config keys of earlier versions
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
_USUAL = {  # options by names that they often have elsewhere
    "lr": "learning_rate",
    "bs": "batch_size",
    "wd": "weight_decay",
    "local_epochs": "epochs",
}
_MANY = 25  # a message lists no more names next to the nearest one


def class_named(what: str, name: str) -> type:
    """Returns the network, head or method of that name, from its package or custom.

    Raises:
        UserError: there is none, or it is not a class of that kind.
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
    """Returns every class of that kind that is named after its module, by the module's name."""
    return discovery.classes(*_KINDS[what])


def network(name: str, options: Mapping[str, Any], num_classes: int) -> Module:
    """Returns the network of that name with its options.

    Raises:
        UserError: there is none, or one of its options, or its head, is invalid.
    """
    kind = class_named("network", name)
    if "head" in options and issubclass(kind, Network):
        options = {**options, "head": head_of(options["head"])}
    return call("network", kind, options, num_classes=num_classes)


def head_of(value: Any) -> type[Module] | WithOptions:
    """Returns the constructor of the head in ``network.head``: a name, or a dict of a name and options.

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
    """Returns the public function ``name`` of ``module``, or a custom one."""
    check_value(what, name, str)
    if ":" in name:
        return callable_named(what, name)
    found = functions(module)
    check_name(what, name, found)
    return found[name]


def functions(module: Any) -> dict[str, Callable]:
    """Returns the public functions of ``module``: those that it defines, or imports from a file in its folder.

    Files whose names begin with an underscore are shared by others.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
        and f"{value.__module__}.{name}".removeprefix(module.__name__).find("._") < 0
    }


def callable_named(what: str, name: str) -> Callable:
    """Returns a custom function or other callable."""
    found = imported(what, name)
    if not callable(found):
        raise UserError(f"{what} {name!r}: it is a {type(found).__name__}, expected a function")
    return found


def imported(what: str, name: str) -> Any:
    """Imports ``module:name``.

    Raises:
        UserError: it cannot be imported for any reason.
    """
    check_value(what, name, str)
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise UserError(f"{what} {name!r}: expected module:name, as my_module:MyClass")
    try:
        content = vars(importlib.import_module(module))
    except BaseException as error:  # from the user's code
        if is_interrupt(error):
            raise
        raise UserError(f"{what} {name!r}: {module} cannot be imported ({explain(error)})") from error
    where = content.get("__file__") or "built into Python"  # a user's file may have the name of another module
    choices = (key for key in content if not key.startswith("_"))
    check_name(f"name in {module} ({where}), of {what},", attribute, choices)
    return content[attribute]


def call(what: str, function: Callable, arguments: Mapping[str, Any], **given: Any) -> Any:
    """Returns ``function(**arguments, **given)``, with lists converted to tuples, which are hashable.

    Raises:
        UserError: an argument is unknown, missing or invalid, or the function raises any exception.
    """
    check_arguments(what, function, arguments, given)
    try:
        return function(**{name: _as_tuple(value) for name, value in arguments.items()}, **given)
    except BaseException as error:
        raise explained(what, error) from error


def check_arguments(
    what: str, function: Callable, arguments: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raises UserError for an argument that is unknown, missing, or violates its annotation.

    Args:
        what: names the function in messages.
        function: the function or class.
        arguments: from the config.
        given: other arguments that the caller passes.
    """
    try:
        accepted = {name: p for name, p in inspect.signature(function).parameters.items() if name not in given}
    except ValueError:  # some built-in functions
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
    """Calls ``user_code.explained``, also for code that exits the process; raises Ctrl-C again."""
    if is_interrupt(error):
        raise error
    return user_code.explained(what, error)


def _as_tuple(value):
    return tuple(map(_as_tuple, value)) if isinstance(value, (list, tuple)) else value


def check_key(what: str, key: str, valid: Iterable[str]) -> None:
    """Calls ``check_name`` for a config key; the message names the key that it is now, here, or in another section."""
    valid = list(valid)
    if key in _RENAMED and key not in valid:
        raise UserError(f"{what} {key!r}: it is {_RENAMED[key]} now")
    usual = _USUAL.get(key, key)
    elsewhere = [path for path in base.KEYS if path.rpartition(".")[2] == usual]
    check_name(what, key, valid, nearest=[usual] if usual in valid else elsewhere if len(elsewhere) == 1 else [])


def check_name(what: str, name: str, valid: Iterable[str], nearest: Sequence[str] = ()) -> None:
    """Raises UserError for an unknown name, with the nearest valid one, and all valid names unless there are many.

    ``nearest``: the nearest one if it is known, otherwise it is the one with the most letters in common.
    """
    valid = sorted(valid)
    if name in valid:
        return
    nearest = nearest or difflib.get_close_matches(str(name), valid, n=1)
    guess = [f"did you mean {nearest[0]!r}?"] if nearest else []
    choices = [] if nearest and len(valid) > _MANY else [f"expected one of {', '.join(valid) or '(none)'}"]
    raise UserError(f"unknown {what} {name!r}: {' '.join(guess + choices)}")


def chosen_name(section: str, config: Mapping[str, Any], key: str) -> str:
    """Returns the name by which a dict of the config chooses.

    Raises:
        UserError: it is no dict, or has no such name.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{section} {config!r}: expected dict({key}=...) with its options next to it")
    value = config.get(key)
    if not isinstance(value, str):
        raise UserError(f"config.{section} has no {key}: expected dict({key}=...) with its options next to it")
    return value


def without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Returns the entries of a config under all other keys."""
    return {key: value for key, value in config.items() if key not in keys}
