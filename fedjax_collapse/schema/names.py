"""Names in a config, and the classes and functions that they choose. No other module imports code by name.

A name is the name of a class's file (``discovery.py``) or of a public function of a module. ``my_module:MyClass`` is a
custom class or function of a module that is next to the config, in the current folder, or installed.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import check_value
from fedjax_collapse.schema.user_code import explain

_USUAL = {  # names that options often have elsewhere, by ours, of which a message names the first that there is
    "learning_rate": ("lr", "local_lr", "local_learning_rate"),
    "batch_size": ("bs", "batchsize", "local_bs", "local_batch_size"),
    "weight_decay": ("wd",),
    "epochs": ("local_epochs", "local_ep", "num_epochs"),
    "steps": ("local_steps", "local_iterations"),
    "rounds": ("num_rounds", "n_rounds", "comm_round", "comm_rounds", "communication_rounds", "global_rounds"),
    "clients": ("num_clients", "n_clients", "num_users", "n_parties", "num_supernodes", "client_num_in_total"),
    "participation": ("frac", "fraction", "fraction_fit", "sample_fraction", "join_ratio", "clients_per_round"),
    "seeds": ("seed",),
    "data.source": ("dataset",),
    "source": ("dataset",),
    "network.name": ("model", "net", "arch"),
    "methods": ("method", "algorithm", "strategy"),
    "strength": ("mu", "lam", "lamda", "lambda", "beta"),
    "alpha": ("beta", "dirichlet_alpha"),
    "temperature": ("tau",),
}
_MANY = 25  # a message lists no more names next to the nearest one


class Choice(NamedTuple):
    """A class, function or value that a config chooses by name, and the options next to the name."""

    name: str
    found: Any  # a class, a function, or a value
    options: dict[str, Any]


def choose(what: str, value: Any, known: Mapping[str, Any], kind: Any = None, *, is_text: bool = False) -> Choice:
    """Returns the choice of a config's ``dict(name=..., **options)``: one of ``known``, or a custom ``module:Name``.

    Args:
        what: the config's key.
        value: the dict.
        known: classes, functions or values by name.
        kind: the class from which a custom class is derived; None for a custom function.
        is_text: whether a name alone is valid, too.

    Raises:
        UserError: there is no such name, or the custom code is of another kind.
    """
    if is_text:
        check_value(what, value, str | dict)
        value = {"name": value} if isinstance(value, str) else value
    name = chosen_name(what, value)
    return Choice(name, found(what, name, known, kind), without(value, "name"))


def found(what: str, name: str, known: Mapping[str, Any], kind: Any = None) -> Any:
    """Returns the known class, function or value of that name, or a custom ``module:Name``; see ``choose``."""
    check_value(what, name, str)
    if ":" not in name and known:
        check_name(what, name, known)
        return known[name]
    custom = imported(what, name)
    if kind is None and not callable(custom):
        raise UserError(f"{what} {name!r}: it is a {type(custom).__name__}, expected a function")
    if kind is not None and not (inspect.isclass(custom) and issubclass(custom, kind)):
        raise UserError(f"{what} {name!r}: expected a class derived from {kind.__module__}.{kind.__name__}")
    return custom


def chosen_name(section: str, config: Any, key: str = "name") -> str:
    """Returns the name by which a dict of the config chooses.

    Raises:
        UserError: the config has no dict there, or no name in it.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{section} {config!r}: expected dict({key}=...) with its options next to it")
    if not isinstance(config.get(key), str):
        raise UserError(f"config.{section} has no {key}: expected dict({key}=...) with its options next to it")
    return config[key]


def functions(module: Any) -> dict[str, Callable]:
    """Returns the public functions that ``module`` defines or imports from a file in its folder.

    Files whose names begin with an underscore are left out.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
        and "._" not in f"{value.__module__}.{name}".removeprefix(module.__name__)
    }


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
    except (Exception, SystemExit) as error:  # from the user's code
        raise UserError(f"{what} {name!r}: {module} cannot be imported ({explain(error)})") from error
    where = content.get("__file__") or "built into Python"  # a user's file may have the name of another module
    choices = (key for key in content if not key.startswith("_"))
    check_name(f"name in {module} ({where}), of {what},", attribute, choices)
    return content[attribute]


def check_key(what: str, key: str, valid: Collection[str], elsewhere: Iterable[str] = ()) -> None:
    """Calls ``check_name`` for the key of a config or an option; ``elsewhere`` are dotted keys of other sections."""
    if key in valid:
        return
    usual = [ours for ours, habits in _USUAL.items() if key in habits]
    nearest = [name for name in usual if name in valid]
    for name in [] if nearest else [*usual, key]:
        others = [path for path in elsewhere if name in (path, path.rpartition(".")[2])]
        nearest += others if len(others) == 1 else []
    check_name(what, key, valid, nearest)


def check_name(what: str, name: str, valid: Iterable[str], nearest: Sequence[str] = ()) -> None:
    """Raises UserError for an unknown name, with the nearest valid one, and all valid names unless there are many.

    ``nearest``: the nearest name, by default the valid name with the most letters in common.
    """
    valid = sorted(valid)
    if name in valid:
        return
    nearest = nearest or difflib.get_close_matches(str(name), valid, n=1)
    guess = [f"did you mean {nearest[0]!r}?"] if nearest else []
    choices = [] if nearest and not 0 < len(valid) <= _MANY else [f"expected one of {', '.join(valid) or '(none)'}"]
    raise UserError(f"unknown {what} {name!r}: {' '.join(guess + choices)}")


def without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Returns the entries of a config under all other keys."""
    return {key: value for key, value in config.items() if key not in keys}
