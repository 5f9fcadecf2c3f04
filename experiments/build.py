"""From a config to objects; ``names.py`` knows what its names stand for."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from experiments.arms import as_declared
from experiments.names import call, callable_named, check_name, class_named, classes, function_named, imported
from fedjax_collapse import FedAvg, LocalTraining, Participation, Phase, aggregation, engine
from fedjax_collapse.data import Domains, Federation, augment, partition, sources
from fedjax_collapse.method import Method
from fedjax_collapse.model import Model
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.records import UserError
from fedjax_collapse.simulation import Schedule
from fedjax_collapse.target import Target

_OPTIMIZERS = {name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi")}
_SERVER_OPTIMIZERS = {  # the damped ones are those of the released codes
    **{name: _OPTIMIZERS[name] for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
_BATCH_NORM = ("average", "local", "recalibrate")
_HEADS = {"random": None, "orthogonal": orthogonal_head}
_OF_FEDAVG = ("weighting", "optimized", "private")  # keys of algorithm that are not its method's


def federations(config: ConfigDict, seeds: Iterable[int]) -> dict[int, Federation]:
    """The federation of every seed, padded alike so that all of them share one compiled program.

    Raises:
        UserError: the source or the partition does not exist, or does not fit its options or the other.
    """
    source = data_source(config.data)
    domains = None
    if source.domains is not None:
        domains = Domains(source.domain_names, source.domains, source.test_domains)
    partitions = _partitions(config, source.labels, domains, seeds)
    capacity = max(len(rows) for parts in partitions.values() for rows in parts)
    first = Federation.from_arrays(
        source.images, source.labels, next(iter(partitions.values())), source.test_images, source.test_labels,
        source.mean, source.std, source.class_names, capacity, domains, storage=_storage(config, source),
    )  # fmt: skip
    return {seed: first.with_partition(parts, capacity) for seed, parts in partitions.items()}


def _storage(config, source):
    """Where the examples lie; by ``auto`` on the device unless they take most of its memory."""
    if config.engine.storage != "auto":
        return config.engine.storage
    size, device = source.images.nbytes + source.test_images.nbytes, engine.own_devices()[:1]
    return "device" if engine.memory.fits(size, device) else "host"


def data_source(config: ConfigDict) -> sources.Source:
    """What ``source`` names: a function of ``data/sources.py`` and, behind a colon, its first argument.

    Raises:
        UserError: there is no such function, its argument is missing or too much, or the data cannot be read.
    """
    name, _, argument = _chosen("data", config, "source").partition(":")
    function = function_named("data source", sources, name)
    first, *_ = inspect.signature(function).parameters.values()
    needs_argument = first.default is first.empty
    if needs_argument and not argument:
        raise UserError(f"data.source {name!r} lacks its {first.name}: expected {name}:<{first.name}>")
    if argument and not needs_argument:
        raise UserError(f"data.source '{name}:{argument}': nothing can follow {name}; its options are keys of data")
    arguments = _without(config, "source")
    if "seed" in arguments:
        _check_seed("data.seed", arguments["seed"])
    return call("data", function, arguments, **({first.name: argument} if needs_argument else {}))


def _partitions(config, labels, domains, seeds):
    """The rows of every client, for every seed."""
    name = _chosen("partition", config.partition, "name")
    draw = function_named("partition", partition, name)
    arguments, accepted = _without(config.partition, "name"), inspect.signature(draw).parameters
    if "alpha" not in accepted:  # so that --config.partition.name=iid needs no other change
        arguments.pop("alpha", None)
    given = dict(labels=labels, num_clients=config.clients)
    if "domains" in accepted:
        if domains is None:
            raise UserError(f"partition {name}: data source {config.data.source} has no domains; choose another one")
        given["domains"] = domains.train
    fixed_seed = arguments.pop("seed", None)
    seed_of = {seed: seed if fixed_seed is None else fixed_seed for seed in seeds}
    for seed in seed_of.values():
        _check_seed("seed of the partition", seed)
    return {seed: call("partition", draw, arguments, **given, seed=own) for seed, own in seed_of.items()}


def model(config: ConfigDict, federation: Federation) -> Model:
    """The network, with as many classes as the data, for images of the size that the augmentation makes of them."""
    constructor = class_named("network", config.network.name)
    arguments = _without(config.network, "name")
    if arguments.get("lowering") == "timed":  # which it is in ``runs.make_plan``, by the rules until then
        arguments["lowering"] = "auto"
    if ":" in arguments.get("head", ""):
        arguments["head"] = imported("network.head", arguments["head"])
    network = call("network", constructor, arguments, num_classes=federation.num_classes)
    check_name("head", config.head, _HEADS)
    augmented = augment.output_shape(augmentation(config.training.get("augmentation", "none")), federation.input_shape)
    built = Model(network, augmented, _HEADS[config.head])
    jax.eval_shape(built.init, jax.random.key(0))  # an option or an image size that does not fit fails here
    return built


def algorithm(config: ConfigDict) -> FedAvg:
    """Local training, methods and server optimizer."""
    check_name("batch_norm", config.batch_norm, _BATCH_NORM)
    name, arguments = config.algorithm.name, _without(config.algorithm, "name")
    settings = {key: arguments.pop(key) for key in _OF_FEDAVG if key in arguments}
    methods = {}
    if name != "fedavg":
        own = class_named("algorithm", name) if ":" in name else _algorithm_named(name)
        methods[name.split(":")[-1].lower()] = call("algorithm", own, arguments)
    else:
        for key in arguments:
            check_name("option of algorithm", key, _OF_FEDAVG)
    for section, what in (("regularizers", "regularizer"), ("methods", "method")):
        for key, options in as_declared(config[section]).items():
            if key in methods:
                raise UserError(f"{section}.{key}: there is a method of that name already")
            methods[key] = _method(f"{section}.{key}", what, key, options)
    if config.batch_norm == "recalibrate":
        methods["recalibrate"] = class_named("method", "recalibrate")()
    if config.batch_norm == "local":
        private = settings.get("private", "none")
        settings["private"] = "batch_norm" if private == "none" else f"{private}+batch_norm"
    if config.server_optimizer.name != "none":
        settings["server_optimizer"] = optimizer("server_optimizer", config.server_optimizer, _SERVER_OPTIMIZERS)
    return call("algorithm", FedAvg, settings, training=training(config), methods=methods)


def _algorithm_named(name):
    check_name("algorithm", name, ["fedavg", *classes("algorithm")])
    return class_named("algorithm", name)


def _method(path, what, key, options) -> Method:
    """The method of that module name, or that its ``name`` says."""
    options = dict(options)
    name = options.pop("name", key)
    return call(path, class_named(what, name), options)


def training(config: ConfigDict) -> LocalTraining:
    """A client's local training."""
    options = {"schedule_rounds": config.rounds, **_without(config.training, "augmentation", "optimizer", "phases")}
    given = dict(augmentation=augmentation(config.training.get("augmentation", "none")))
    if "task_loss" in options:
        options["task_loss"] = callable_named("training.task_loss", options["task_loss"])
    if chosen := config.training.get("optimizer"):
        given["optimizer"] = optimizer("training.optimizer", chosen, _OPTIMIZERS)
    if phases := config.training.get("phases"):
        given["phases"] = tuple(_phase(phase) for phase in phases)
    return call("training", LocalTraining, options, **given)


def _phase(value):
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not is_pair or not isinstance(value[0], str) or not isinstance(value[1], (int, float)):
        raise UserError(f"training.phases: {value!r}, expected pairs of a part and its epochs, such as ('head', 10)")
    return Phase(*value)


def schedule(config: ConfigDict) -> Schedule:
    """How many rounds, who takes part in them, and what is measured between them."""
    options = config.cohort.to_dict()
    for key in ("dropout", "stragglers"):
        options[key] = options.get(key) or None  # a probability of 0 is left out of the program
    if isinstance(options.get("availability"), (tuple, list)):
        options["availability"] = np.asarray(options["availability"], np.float32)
    rule = call("cohort", Participation, options, fraction=config.participation)
    measurements = tuple(
        (name, callable_named(f"measurements.{name}", function))
        for name, function in as_declared(config.measurements).items()
    )
    return Schedule(
        config.rounds, rule, config.evaluate_every, config.checkpoint_every, _watch(config.watch), measurements
    )


def _watch(text):
    """``one``, ``all``, or the identities in a text such as 0,3."""
    identities = [part.strip() for part in text.split(",")]
    return tuple(map(int, identities)) if all(part.isdigit() for part in identities) else text


def augmentation(name: str) -> augment.Augmentation | None:
    """The preset of ``data/augment.py``, or the user's own; None where it leaves images as they are."""
    if ":" in name:
        return callable_named("augmentation", name)
    check_name("augmentation", name, augment.PRESETS)
    return None if augment.PRESETS[name] is augment.PRESETS["none"] else augment.PRESETS[name]


def optimizer(what: str, config: ConfigDict, known: Mapping[str, Any]) -> jax.tree_util.Partial:
    """A constructor of an optimizer with its arguments, whose numbers stay traced."""
    if not isinstance(config, Mapping | ConfigDict):
        raise UserError(f"{what} {config!r}: expected dict(name=...) with its options beside it")
    name = _chosen(what, config, "name")
    if ":" in name:
        constructor = callable_named(what, name)
    else:
        check_name(what, name, known)
        constructor = known[name]
    arguments = _without(config, "name")
    if what == "server_optimizer":
        call(what, constructor, arguments)
    else:
        call(what, constructor, arguments, learning_rate=0.1)  # that of the local training is given in every round
    return jax.tree_util.Partial(constructor, **arguments)


def client_map(config: ConfigDict, network: Model) -> engine.ClientMap:
    """How clients are laid out. ``auto``: over all devices, on each as many as are a good first choice there."""
    options = config.engine
    cohort = Participation(fraction=config.participation).cohort_size(config.clients)
    devices = engine.available_devices()
    num_devices = options.devices or engine.num_busy(cohort, devices)
    most = engine.clients_at_once(Target.of(devices[0]), network)
    chunk = engine.Chunked(options.clients_at_once or min(most, -(-cohort // num_devices)))
    layout = options.layout
    if jax.process_count() > 1 and layout not in ("auto", "timed", "sharded"):
        raise UserError(f"engine.layout {layout!r}: several processes divide the clients; choose auto or sharded")
    if layout in ("auto", "timed"):
        layout = "sharded" if num_devices != 1 else "chunked"
    if layout == "sharded":
        return engine.Sharded(num_devices, chunk)
    return {"chunked": chunk, "vectorized": engine.Vectorized(), "loop": engine.Loop()}[layout]


def _check_seed(name, seed):
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"{name} {seed!r}: expected an integer >= 0")


def _chosen(section, config, key):
    """The name that a dict of the config chooses by."""
    value = config.get(key)
    if not isinstance(value, str):
        raise UserError(f"config.{section} has no {key}: expected dict({key}=...) with its options beside it")
    return value


def _without(config, *keys):
    config = config.to_dict() if isinstance(config, ConfigDict) else config
    return {key: value for key, value in config.items() if key not in keys}
