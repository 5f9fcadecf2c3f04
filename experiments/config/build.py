"""Builds objects from a config; ``names.py`` resolves its names."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from experiments.config.names import (
    call,
    callable_named,
    check_arguments,
    check_name,
    class_named,
    explained,
    function_named,
    imported,
    network,
)
from fedjax_collapse import FedAvg, LocalTraining, Participation, Phase, engine
from fedjax_collapse.analysis import measurements
from fedjax_collapse.core import processes
from fedjax_collapse.core.options import Decay, NonNegative, Positive, Seed, check_value, constructor
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import Federation, augment, partition, sources
from fedjax_collapse.data.ownership import owned
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.nn.model import Model
from fedjax_collapse.simulation.simulation import Schedule
from fedjax_collapse.training import aggregation, schedules
from fedjax_collapse.training.optimizers import check_optimizer

_OPTIMIZERS = {name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi")}
SERVER_OPTIMIZERS = {  # the damped ones are from released code
    **{name: _OPTIMIZERS[name] for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
SAMPLERS = {"uniform": engine.Uniform, "by_size": engine.BySize, "available": engine.Available}
_OF_OPTAX = {  # annotations that optax does not have
    "learning_rate": Positive,
    "momentum": Decay | None,
    **dict.fromkeys(("b1", "b2", "decay"), Decay),
    **dict.fromkeys(("eps", "eps_root", "weight_decay", "initial_accumulator_value"), NonNegative),
}
_HEADS = {"random": None, "orthogonal": orthogonal_head}
_ALIASES = {  # published methods that are values of other keys
    "fedavg": "methods=dict(), without any",
    "fedbn": 'server=dict(batch_norm="local")',
    "fedavgm": 'server=dict(optimizer=dict(name="sgd", learning_rate=1.0, momentum=0.9))',
    **{
        f"fed{name}": f'server=dict(optimizer=dict(name="damped_{name}", learning_rate=0.1))'
        for name in ("adagrad", "adam", "yogi")
    },
    "fedbabu": 'training=dict(freeze="head")',
    "freeze": 'training=dict(freeze="head"), and head="orthogonal" for exactly orthonormal weights',
}


def federations(config: Mapping[str, Any], seeds: Iterable[int]) -> dict[int, Federation]:
    """Returns the federation of every seed, padded to one capacity so that all of them share one compiled program.

    Raises:
        UserError: the source or the partition does not exist, has invalid options, or they do not fit each other.
    """
    source = data_source(config["data"])
    partitions = _partitions(config, source, seeds)
    capacity = max(np.size(rows) for parts in partitions.values() for rows in parts)
    first = Federation.from_source(source, next(iter(partitions.values())), capacity, _storage(config, source))
    return {seed: first.with_partition(parts, capacity) for seed, parts in partitions.items()}


def _storage(config, source):
    """Returns where the examples are stored; with ``auto`` on the device unless they take most of its memory."""
    if config["engine"]["storage"] != "auto":
        return config["engine"]["storage"]
    size, device = source.images.nbytes + source.test_images.nbytes, engine.own_devices()[:1]
    return "device" if engine.memory.fits(size, device) else "host"


def data_source(config: Mapping[str, Any]) -> sources.Source:
    """Returns the data of ``source``: a function of ``data/sources.py`` and, after a colon, its first argument.

    Raises:
        UserError: there is no such function, its argument is missing or unexpected, or the data cannot be read.
    """
    name, _, argument = _chosen("data", config, "source").partition(":")
    function = function_named("data source", sources, name)
    first, *_ = inspect.signature(function).parameters.values()
    needs_argument = first.default is first.empty
    if needs_argument and not argument:
        raise UserError(f"data.source {name!r} lacks its {first.name}: expected {name}:<{first.name}>")
    if argument and not needs_argument:
        raise UserError(f"data.source '{name}:{argument}': nothing can follow {name}; its options are keys of data")
    return call("data", function, _without(config, "source"), **({first.name: argument} if needs_argument else {}))


def _partitions(config, source, seeds):
    """Returns the rows of every client, for every seed."""
    name = _chosen("partition", config["partition"], "name")
    draw = function_named("partition", partition, name)
    arguments, accepted = _without(config["partition"], "name"), inspect.signature(draw).parameters
    if "alpha" not in accepted:  # so that --config.partition.name=iid needs no other change
        arguments.pop("alpha", None)
    given = dict(labels=source.labels, num_clients=config["clients"])
    if "domains" in accepted:
        if source.domains is None:
            raise UserError(
                f"partition {name}: data source {config['data']['source']} has no domains; choose another one"
            )
        given["domains"] = source.domains
    fixed_seed = arguments.pop("seed", None)
    check_value("partition.seed", fixed_seed, Seed | None)
    seed_of = {seed: seed if fixed_seed is None else fixed_seed for seed in seeds}
    return {seed: _partition(config, draw, arguments, **given, seed=own) for seed, own in seed_of.items()}


def _partition(config, draw, arguments, **given):
    """Returns the rows of every client; ``draw`` may be a custom function."""
    try:
        parts = owned(call("partition", draw, arguments, **given), most=config["clients"])
    except BaseException as error:
        raise explained("partition", error) from error
    if len(parts) < config["clients"]:
        name, clients = config["partition"]["name"], config["clients"]
        raise UserError(f"partition: {name} returned {len(parts)} of clients={clients} clients")
    return parts


def model(config: Mapping[str, Any], federation: Federation) -> Model:
    """Returns the network, with as many classes as the data, for images of the size after augmentation."""
    name, arguments = _chosen("network", config["network"], "name"), _without(config["network"], "name")
    if arguments.get("lowering") in ("timed", "rules"):  # timed in ``runs.make_plan``, by the rules until then
        arguments["lowering"] = "auto"
    check_name("head", config["head"], _HEADS)
    augmented = _augmented_shape(config, federation)
    module = network(name, arguments, federation.num_classes)
    try:
        built = Model(module, augmented, _HEADS[config["head"]])
        jax.eval_shape(built.init, jax.random.key(0))  # raises for invalid options or image sizes
    except BaseException as error:
        raise explained(f"network {name} cannot be made with these options", error) from error
    return built


def _augmented_shape(config, federation):
    """Returns the shape of an image as the network sees it."""
    augmented = augmentation(config["training"].get("augmentation", "none"))
    try:
        return augment.output_shape(augmented, federation.input_shape)
    except BaseException as error:
        raise explained(f"augmentation {config['training']['augmentation']}", error) from error


def algorithm(config: Mapping[str, Any]) -> FedAvg:
    """Returns the algorithm: local training, methods in the order of the config, and the server's step."""
    methods = {key: _method(key, options) for key, options in config["methods"].items()}
    settings, private = dict(config["server"]), config["private"]
    batch_norm, chosen = settings.pop("batch_norm", "average"), settings.pop("optimizer", {"name": "none"})
    if batch_norm == "recalibrate":
        methods.setdefault("recalibrate", class_named("method", "recalibrate")())
    if batch_norm == "local":
        private = "batch_norm" if private == "none" else f"{private}+batch_norm"
    if _chosen("server.optimizer", chosen, "name") != "none":
        settings["server_optimizer"] = optimizer("server.optimizer", chosen, SERVER_OPTIMIZERS)
    elif unused := _without(chosen, "name"):
        raise UserError(
            f"server.optimizer.{next(iter(unused))}: set server.optimizer.name, too, such as sgd; it is none"
        )
    return call("server", FedAvg, settings, private=private, training=training(config), methods=methods)


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
    options = _without(config["training"], "augmentation", "optimizer", "phases", "schedule")
    given = dict(augmentation=augmentation(config["training"].get("augmentation", "none")))
    if options.get("task_loss") is not None:
        options["task_loss"] = callable_named("training.task_loss", options["task_loss"])
    if (chosen := config["training"].get("optimizer")) is not None:
        given["optimizer"] = optimizer("training.optimizer", chosen, _OPTIMIZERS)
    given["schedule"] = _learning_rate_schedule(config["training"].get("schedule", "constant"), config["rounds"])
    check_value("training.phases", phases := config["training"].get("phases", ()), tuple)
    given["phases"] = tuple(map(_phase, phases))
    return call("training", LocalTraining, options, **given)


def _learning_rate_schedule(value, rounds):
    """Returns the schedule with that name, or with the name and options of a dict; None if it is constant."""
    check_value("training.schedule", value, str | dict)
    options = dict(value) if isinstance(value, dict) else {"name": value}
    name = _chosen("training.schedule", options, "name")
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


def schedule(config: Mapping[str, Any]) -> Schedule:
    """Returns the schedule: the number of rounds, who takes part in them, and what is measured between them."""
    options = _without(config["cohort"], "sampler", "clock")
    given = dict(fraction=config["participation"])
    if (sampler := config["cohort"].get("sampler")) is not None:
        given["sampler"] = _sampler(sampler)
    if (clock := config["cohort"].get("clock")) is not None:
        given["clock"] = _with_arrays("cohort.clock", engine.Clock, clock)
    check_arguments("cohort", Participation, options, given)
    for key in ("dropout", "stragglers", "upload_loss"):
        options[key] = options.get(key) or None  # 0 is left out of the program
    rule = call("cohort", Participation, options, **given)
    measured = tuple(
        (name, function_named(f"measurements.{name}", measurements, function))
        for name, function in config["measurements"].items()
    )
    keys = ("rounds", "evaluate_every", "checkpoint_every", "measure_every", "on_nan", "stop_at_accuracy")
    given = {key: config[key] for key in keys}
    return Schedule(participation=rule, watch=_watch(config["watch"]), measurements=measured, **given)


def _sampler(config):
    """Returns the sampler of cohorts: one of ``engine/samplers.py``, or a custom class."""
    name = _chosen("cohort.sampler", config, "name")
    if ":" in name:
        kind = imported("cohort.sampler", name)
        if not (inspect.isclass(kind) and issubclass(kind, engine.Uniform)):
            raise UserError(f"cohort.sampler {name!r}: expected a class derived from fedjax_collapse.engine.Uniform")
    else:
        check_name("cohort.sampler", name, SAMPLERS)
        kind = SAMPLERS[name]
    return _with_arrays("cohort.sampler", kind, _without(config, "name"))


def _with_arrays(what, kind, options):
    """Returns a record with arrays for options that have a number for each client."""
    check_value(what, options, dict)
    options = dict(options)
    for key, value in options.items():
        if isinstance(value, (tuple, list)):
            check_value(f"{what}.{key}", value, tuple[float, ...])
            options[key] = np.asarray(value, np.float32)
    return call(what, kind, options)


def _watch(text):
    """Returns ``one``, ``all``, or the identities in a text such as 0,3."""
    identities = [part.strip() for part in text.split(",")]
    return tuple(map(int, identities)) if all(part.isdecimal() for part in identities) else text


def augmentation(name: str) -> augment.Augmentation | None:
    """Returns the preset of ``data/augment.py``, or a custom function; None if it does not change images."""
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
    name = _chosen(what, config, "name")
    if ":" in name:
        made_by = callable_named(what, name)
    else:
        check_name(what, name, known)
        made_by = known[name]
    arguments = _without(config, "name")
    given = {} if what == "server.optimizer" else {"learning_rate": 0.1}  # local training passes it in every round
    check_arguments(what, made_by, arguments, given)
    for key, value in arguments.items() if made_by in _OPTIMIZERS.values() else ():
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


def client_map(config: Mapping[str, Any], network: Model) -> engine.ClientMap:
    """Returns the layout of clients. ``auto``: over all devices, with a good number of clients at once on each."""
    options = config["engine"]
    cohort = Participation(fraction=config["participation"]).cohort_size(config["clients"])
    _check_layout(options, cohort)
    devices = engine.available_devices()
    num_devices = options["devices"] or engine.num_busy(cohort, devices)
    most = engine.clients_at_once(Target.of(devices[0]), network)
    chunk = engine.Chunked(options["clients_at_once"] or min(most, -(-cohort // num_devices)))
    layout = options["layout"]
    if processes.is_multiprocess() and layout not in ("auto", "timed", "sharded"):
        raise UserError(f"engine.layout {layout!r}: several processes divide the clients; choose auto or sharded")
    if layout in ("auto", "timed"):
        layout = "sharded" if num_devices != 1 else "chunked"
    if layout == "sharded":
        return engine.Sharded(num_devices, chunk)
    return {"chunked": chunk, "vectorized": engine.Vectorized(), "loop": engine.Loop()}[layout]


def _check_layout(options, cohort):
    at_once, layout = options["clients_at_once"], options["layout"]
    if at_once and layout in ("vectorized", "loop"):
        raise UserError(f"engine.clients_at_once {at_once}: expected 0, as layout {layout} has no such number")
    if at_once > cohort:
        raise UserError(f"engine.clients_at_once {at_once}: expected at most {cohort}, the clients of a round")
    if options["devices"] > 1 and layout in ("vectorized", "loop", "chunked"):
        raise UserError(f"engine.devices {options['devices']}: expected 0 or 1, as layout {layout} is of one device")


def _chosen(section, config, key):
    """Returns the name by which a dict of the config chooses."""
    if not isinstance(config, Mapping):
        raise UserError(f"{section} {config!r}: expected dict({key}=...) with its options next to it")
    value = config.get(key)
    if not isinstance(value, str):
        raise UserError(f"config.{section} has no {key}: expected dict({key}=...) with its options next to it")
    return value


def _without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}
