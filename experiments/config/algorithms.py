"""Builds the algorithm of a config: local training, methods, and the server's step."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import optax

from experiments.config.names import (
    call,
    callable_named,
    check_arguments,
    check_name,
    chosen_name,
    class_named,
    explained,
    function_named,
    without,
)
from fedjax_collapse import FedAvg, LocalTraining, Phase
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import augment
from fedjax_collapse.methods.base import Method
from fedjax_collapse.optim import aggregation, schedules
from fedjax_collapse.optim.optimizers import check_optimizer
from fedjax_collapse.schema.options import Decay, NonNegative, Positive, check_value, constructor

OPTIMIZERS = {name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi")}
SERVER_OPTIMIZERS = {  # the damped ones are from released code
    **{name: OPTIMIZERS[name] for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
_OF_OPTAX = {  # annotations that optax does not have
    "learning_rate": Positive,
    "momentum": Decay | None,
    **dict.fromkeys(("b1", "b2", "decay"), Decay),
    **dict.fromkeys(("eps", "eps_root", "weight_decay", "initial_accumulator_value"), NonNegative),
}
_ALIASES = {  # published methods that are values of other keys
    "fedavg": "methods=dict(), without any",
    "fedbn": 'server=dict(batch_norm="local")',
    "fedavgm": 'server=dict(optimizer=dict(name="sgd", learning_rate=1.0, momentum=0.9))',
    **{
        f"fed{name}": f'server=dict(optimizer=dict(name="damped_{name}", learning_rate=0.1))'
        for name in ("adagrad", "adam", "yogi")
    },
    "freeze": 'training=dict(freeze="head"), and head="orthogonal" for exactly orthonormal weights',
}


def algorithm(config: Mapping[str, Any]) -> FedAvg:
    """Returns the algorithm: local training, methods in the order of the config, and the server's step."""
    methods = {key: _method(key, options) for key, options in config["methods"].items()}
    settings, private = dict(config["server"]), config["private"]
    batch_norm, chosen = settings.pop("batch_norm", "average"), settings.pop("optimizer", {"name": "none"})
    if batch_norm == "recalibrate":
        methods.setdefault("recalibrate", class_named("method", "recalibrate")())
    if batch_norm == "local":
        private = "batch_norm" if private == "none" else f"{private}+batch_norm"
    if chosen_name("server.optimizer", chosen, "name") != "none":
        settings["server_optimizer"] = optimizer("server.optimizer", chosen, SERVER_OPTIMIZERS)
    elif unused := without(chosen, "name"):
        raise UserError(
            f"server.optimizer.{next(iter(unused))}: set server.optimizer.name, too, such as sgd; it is none"
        )
    given = dict(private=private, keep_trained=config["keep_trained"])
    return call("server", FedAvg, settings, training=training(config), methods=methods, **given)


def _method(key, options) -> Method:
    """Returns the method with that module name, or with its ``name`` option."""
    check_value(path := f"methods.{key}", options, dict)
    options = dict(options)
    name = options.pop("name", key)
    if alias := _ALIASES.get(name) if isinstance(name, str) else None:
        raise UserError(f"{path}: {name} is federated averaging with {alias}")
    return call(path, class_named("method", name), options)


def training(config: Mapping[str, Any]) -> LocalTraining:
    """Returns a client's local training."""
    options = without(config["training"], "augmentation", "optimizer", "phases", "schedule")
    if config["network"].get("adapters"):
        check_value("training.freeze", frozen := options.get("freeze", "none"), str)
        options["freeze"] = "+".join(part for part in ("base", frozen) if part != "none")
    given = dict(augmentation=augmentation(config["training"].get("augmentation", "none")))
    if options.get("task_loss") is not None:
        options["task_loss"] = callable_named("training.task_loss", options["task_loss"])
    if (chosen := config["training"].get("optimizer")) is not None:
        given["optimizer"] = optimizer("training.optimizer", chosen, OPTIMIZERS)
    given["schedule"] = _learning_rate_schedule(config["training"].get("schedule", "constant"), config["rounds"])
    check_value("training.phases", phases := config["training"].get("phases", ()), tuple)
    given["phases"] = tuple(map(_phase, phases))
    return call("training", LocalTraining, options, **given)


def _learning_rate_schedule(value, rounds):
    """Returns the schedule with that name, or with the name and options of a dict; None if it is constant."""
    check_value("training.schedule", value, str | dict)
    options = dict(value) if isinstance(value, dict) else {"name": value}
    name = chosen_name("training.schedule", options, "name")
    del options["name"]
    if name == "constant" and not options:
        return None
    function = function_named("training.schedule", schedules, name)
    if "rounds" in inspect.signature(function).parameters:
        options = {"rounds": rounds} | options
    check_arguments("training.schedule", function, options, {"round": 0})
    return constructor(function, **options)


def _phase(value):
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise UserError(f"training.phases: {value!r}, expected pairs of a part and its epochs, such as ('head', 10)")
    return call("training.phases", Phase, dict(zip(("part", "epochs"), value, strict=True)))


def augmentation(name: str) -> augment.Augmentation | None:
    """Returns the preset of ``data/augment``, or a custom function; None if it does not change images."""
    check_value("training.augmentation", name, str)
    if ":" in name:
        return callable_named("augmentation", name)
    check_name("augmentation", name, augment.PRESETS)
    return None if augment.PRESETS[name] is augment.PRESETS["none"] else augment.PRESETS[name]


def optimizer(what: str, config: Mapping[str, Any], known: Mapping[str, Any]) -> jax.tree_util.Partial:
    """Returns a constructor of an optimizer with its arguments, whose numbers stay traced; checked by tracing a step.

    Raises:
        UserError: there is no such optimizer, or it cannot be made with them.
    """
    name = chosen_name(what, config, "name")
    if ":" in name:
        made_by = callable_named(what, name)
    else:
        check_name(what, name, known)
        made_by = known[name]
    arguments = without(config, "name")
    given = {} if what == "server.optimizer" else {"learning_rate": 0.1}  # local training passes it in every round
    check_arguments(what, made_by, arguments, given)
    for key, value in arguments.items() if made_by in OPTIMIZERS.values() else ():
        default = inspect.signature(made_by).parameters[key].default
        kind = type(default) if isinstance(default, (bool, float)) else Any
        check_value(f"{what}.{key}", value, _OF_OPTAX.get(key, kind))
    made = constructor(made_by, **arguments)
    check_value(what, made, jax.tree_util.Partial)
    try:
        check_optimizer(f"{what} {name}", made, **given)
    except BaseException as error:
        raise explained(f"{what} {name}", error) from error
    return made
