"""From a config to objects: the only place where strings become code.

A name is a module's: ``regularizers.feddecorr`` is the class of ``fedjax_collapse/regularizers/feddecorr.py`` whose
name is the module's, up to case and underscores. There is no registry; a new file is found by its name. A module
without such a class is no choice.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import optax
from flax.linen import Module
from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse import aggregation, algorithms, engine, nn, regularizers, selection
from fedjax_collapse.algorithms import Algorithm, LocalTraining
from fedjax_collapse.data import Domains, Federation, augment, partition, sources
from fedjax_collapse.records import Model, UserError
from fedjax_collapse.simulation import cohort_size

_KINDS = {
    "network": (nn, Module),
    "regularizer": (regularizers, regularizers.Regularizer),
    "algorithm": (algorithms, Algorithm),
}
_SERVER_OPTIMIZERS = {  # the damped ones are those of the released codes
    **{name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
_BATCH_NORM = {"average": {}, "local": {"private": "batch_norm"}, "recalibrate": {"recalibrate": True}}
_ENGINE_CHOICES = {
    "layout": ("auto", "timed", "chunked", "vectorized", "sharded", "loop"),
    "runs": ("auto", "together", "separate"),
    "storage": engine.STORAGES,
}
_HEADS = {"random": None, "orthogonal": selection.orthogonal_head}


def resolve_arm(config: ConfigDict, arm: str) -> ConfigDict:
    """The config of one arm: what it declares, over the rest of the config.

    Raises:
        UserError: the arm, or a key that it declares, does not exist, or must be the same for all arms.
    """
    check_name("arm", arm, config.arms)
    resolved = config.to_dict()
    changes = resolved.pop("arms")[arm]
    for key in ("rounds", "seeds"):
        if key in changes:
            raise UserError(f"arms.{arm}.{key}: all arms of a study have the same {key}; set config.{key}")
    _override(resolved, changes, f"arms.{arm}")
    check_keys(resolved)
    return ConfigDict(resolved)


def check_keys(config: Mapping) -> None:
    """Raises UserError for a key that ``configs/base.py`` does not know, or an option of ``engine`` that is none."""
    defaults = base.get_config()
    for key in config:
        check_name("config key", key, defaults)
    _check_engine(config["engine"], defaults.engine)


def _check_engine(options, defaults):
    for key in options:
        check_name("config key of engine", key, defaults)
    for key, default in defaults.items():
        if key not in options:
            raise UserError(f"config.engine has no {key}: change some of its values by config.engine.update(...)")
        _check_type(f"engine.{key}", options[key], type(default))
    for key, choices in _ENGINE_CHOICES.items():
        check_name(f"engine.{key}", options[key], choices)


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
    return "device" if engine.memory.fits(source.images.nbytes + source.test_images.nbytes, num_devices=1) else "host"


def data_source(config: ConfigDict) -> sources.Source:
    """What ``source`` names: a function of ``data/sources.py`` and, behind a colon, its first argument.

    Raises:
        UserError: there is no such function, its argument is missing or too much, or the data cannot be read.
    """
    name, _, argument = _chosen("data", config, "source").partition(":")
    function = getattr_named("data source", sources, name)
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
    draw = getattr_named("partition", partition, name)
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
    network = call("network", constructor, arguments, num_classes=federation.num_classes)
    check_name("head", config.head, _HEADS)
    augmented = augment.output_shape(augmentation(config.training.get("augmentation", "none")), federation.image_shape)
    built = Model(network, augmented, _HEADS[config.head])
    jax.eval_shape(built.init, jax.random.key(0))  # an option or an image size that does not fit fails here
    return built


def algorithm(config: ConfigDict) -> Algorithm:
    """The algorithm with its local training and regularizers."""
    check_name("batch_norm", config.batch_norm, _BATCH_NORM)
    training = {"schedule_rounds": config.rounds, **_without(config.training, "augmentation")}
    parts = dict(
        training=call(
            "training", LocalTraining, training, augmentation=augmentation(config.training.get("augmentation", "none"))
        ),
        regularizers={
            name: call(f"regularizers.{name}", class_named("regularizer", name), arguments)
            for name, arguments in config.regularizers.to_dict().items()
        },
    )
    if config.server_optimizer.name != "none":
        parts["server_optimizer"] = server_optimizer(config.server_optimizer)
    constructor = class_named("algorithm", config.algorithm.name)
    parts |= _BATCH_NORM[config.batch_norm]
    return call("algorithm", constructor, _without(config.algorithm, "name"), **parts)


def augmentation(name: str) -> augment.Augmentation | None:
    """The preset of ``data/augment.py``; None where it leaves images as they are."""
    check_name("augmentation", name, augment.PRESETS)
    return None if augment.PRESETS[name] is augment.PRESETS["none"] else augment.PRESETS[name]


def server_optimizer(config: ConfigDict) -> jax.tree_util.Partial:
    """A constructor of an optimizer with its arguments, whose numbers stay traced."""
    check_name("server_optimizer", config.name, _SERVER_OPTIMIZERS)
    constructor = _SERVER_OPTIMIZERS[config.name]
    arguments = _without(config, "name")
    call("server_optimizer", constructor, arguments)
    return jax.tree_util.Partial(constructor, **arguments)


def client_map(config: ConfigDict) -> engine.ClientMap:
    """How clients are laid out. ``auto``: over all devices, on each of them one client at a time on a CPU, else ten."""
    options = config.engine
    cohort = cohort_size(config.participation, config.clients)
    on_cpu = jax.default_backend() == "cpu"
    chunk = engine.Chunked(options.clients_at_once or (1 if on_cpu else min(10, cohort)))
    num_devices = options.devices or min(len(jax.devices()), cohort)
    layout = options.layout
    if layout in ("auto", "timed"):
        layout = "sharded" if num_devices != 1 else "chunked"
    if layout == "sharded":
        return engine.Sharded(num_devices, chunk)
    return {"chunked": chunk, "vectorized": engine.Vectorized(), "loop": engine.Loop()}[layout]


def class_named(what: str, name: str) -> Callable:
    """The network, regularizer or algorithm of the module ``name``."""
    found = classes(what)
    check_name(what, name, found)
    return found[name]


def classes(what: str) -> dict[str, type]:
    """Every class of that kind that is named as its module, by the module's name."""
    package, kind = _KINDS[what]
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    contents = {name: vars(importlib.import_module(f"{package.__name__}.{name}")) for name in names}
    return {
        module: value
        for module, content in contents.items()
        for name, value in content.items()
        if name.lower() == module.replace("_", "") and inspect.isclass(value) and issubclass(value, kind)
    }


def getattr_named(what: str, module: Any, name: str) -> Callable:
    """The public function ``name`` of ``module``."""
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


def call(what: str, function: Callable, arguments: Mapping[str, Any], **given: Any) -> Any:
    """``function(**arguments, **given)``; a UserError for an argument that it does not take, or lacks."""
    accepted = {name: p for name, p in inspect.signature(function).parameters.items() if name not in given}
    for name, value in arguments.items():
        check_name(f"option of {what}", name, accepted)
        _check_type(f"{what}.{name}", value, accepted[name].annotation)
    for name, parameter in accepted.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"{what}.{name} is missing: {function.__name__} needs it")
    return function(**arguments, **given)


def _check_type(name, value, annotation):
    """Plain annotations only: a number may be given as an int, everything else as what it says."""
    expected = {float: (int, float), int: (int,), str: (str,), bool: (bool,), tuple: (tuple, list)}.get(annotation)
    if expected and (not isinstance(value, expected) or (isinstance(value, bool) and annotation is not bool)):
        raise UserError(f"{name} {value!r}: expected {annotation.__name__}, got {type(value).__name__}")


def _check_seed(name, seed):
    if not isinstance(seed, int) or seed < 0:
        raise UserError(f"{name} {seed!r}: expected an integer >= 0")


def _chosen(section, config, key):
    """The name that a dict of the config chooses by."""
    value = config.get(key)
    if not isinstance(value, str):
        raise UserError(f"config.{section} has no {key}: expected dict({key}=...) with its options beside it")
    return value


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """Raises UserError with the nearest valid name."""
    valid = sorted(valid)
    if name in valid:
        return
    nearest = difflib.get_close_matches(name, valid, n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise UserError(f"unknown {what} {name!r}: {guess}expected one of {', '.join(valid) or '(none)'}")


def _override(target, changes, path):
    for key, value in changes.items():
        check_name(f"key in {path}", key, target) if path.count(".") == 1 else None
        mergeable = isinstance(value, Mapping) and isinstance(target.get(key), Mapping)
        if mergeable and value.get("name", target[key].get("name")) == target[key].get("name"):
            _override(target[key], value, f"{path}.{key}")
        else:
            target[key] = value


def _without(config, *keys):
    return {key: value for key, value in config.to_dict().items() if key not in keys}
