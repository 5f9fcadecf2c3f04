"""From a config to objects: the only place where strings become code.

A name is a module's: ``regularizers.feddecorr`` is the class of ``fedjax_collapse/regularizers/feddecorr.py`` whose
name is the module's, up to case and underscores. There is no registry; a new file is found by its name.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse import aggregation, algorithms, engine, nn, regularizers
from fedjax_collapse.algorithms import Algorithm, LocalTraining
from fedjax_collapse.data import Federation, partition, sources
from fedjax_collapse.records import Model, UserError
from fedjax_collapse.simulation import cohort_size

_NOT_CHOICES = ("base", "layers", "local_training")
_SERVER_OPTIMIZERS = {  # the damped ones are those of the released codes
    **{name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
_BATCH_NORM = ("average",)  # private statistics (FedBN) need the evaluation of personal models


def resolve_arm(config: ConfigDict, arm: str) -> ConfigDict:
    """The config of one arm: what it declares, over the rest of the config.

    Raises:
        UserError: the arm, or a key that it declares, does not exist.
    """
    check_name("arm", arm, config.arms)
    resolved = config.to_dict()
    changes = resolved.pop("arms")[arm]
    _override(resolved, changes, f"arms.{arm}")
    check_keys(resolved)
    return ConfigDict(resolved)


def check_keys(config: Mapping) -> None:
    """Raises UserError for a key that ``configs/base.py`` does not know."""
    known = list(base.get_config())
    for key in config:
        check_name("config key", key, known)


def federations(config: ConfigDict, seeds: Iterable[int]) -> dict[int, Federation]:
    """The federation of every seed, padded alike so that all of them share one compiled program."""
    source = call(
        "data.source", getattr_named("data source", sources, config.data.source), _without(config.data, "source")
    )
    draw = getattr_named("partition", partition, config.partition.name)
    arguments = _without(config.partition, "name")
    accepted = inspect.signature(draw).parameters
    if "alpha" not in accepted:  # so that --config.partition.name=iid needs no other change
        arguments.pop("alpha", None)
    fixed_seed = arguments.pop("seed", None)
    partitions = {
        seed: call(
            "partition", draw, arguments,
            labels=source.labels, num_clients=config.clients, seed=seed if fixed_seed is None else fixed_seed,
        )
        for seed in seeds
    }  # fmt: skip
    capacity = max(len(rows) for parts in partitions.values() for rows in parts)
    return {
        seed: Federation.from_arrays(
            source.images, source.labels, parts, source.test_images, source.test_labels,
            source.mean, source.std, source.class_names, capacity,
        )
        for seed, parts in partitions.items()
    }  # fmt: skip


def model(config: ConfigDict, federation: Federation) -> Model:
    """The network, with as many classes as the data."""
    constructor = class_named("network", nn, config.network.name)
    arguments = _without(config.network, "name")
    built = Model(call("network", constructor, arguments, num_classes=federation.num_classes), federation.image_shape)
    jax.eval_shape(built.init, jax.random.key(0))  # an option or an image size that does not fit fails here
    return built


def algorithm(config: ConfigDict) -> Algorithm:
    """The algorithm with its local training and regularizers."""
    check_name("batch_norm", config.batch_norm, _BATCH_NORM)
    parts = dict(
        training=call("training", LocalTraining, config.training.to_dict()),
        regularizers={
            name: call(f"regularizers.{name}", class_named("regularizer", regularizers, name), arguments)
            for name, arguments in config.regularizers.to_dict().items()
        },
    )
    if config.server_optimizer.name != "none":
        parts["server_optimizer"] = server_optimizer(config.server_optimizer)
    constructor = class_named("algorithm", algorithms, config.algorithm.name)
    return call("algorithm", constructor, _without(config.algorithm, "name"), **parts)


def server_optimizer(config: ConfigDict) -> jax.tree_util.Partial:
    """A constructor of an optimizer with its arguments, whose numbers stay traced."""
    check_name("server_optimizer", config.name, _SERVER_OPTIMIZERS)
    constructor = _SERVER_OPTIMIZERS[config.name]
    arguments = _without(config, "name")
    call("server_optimizer", constructor, arguments)
    return jax.tree_util.Partial(constructor, **arguments)


def client_map(config: ConfigDict) -> engine.ClientMap:
    """How clients are laid out. ``auto``: over all devices, on each of them one client at a time on a CPU, else ten."""
    check_name("engine.layout", config.engine.layout, ("auto", "chunked", "vectorized", "sharded", "loop"))
    cohort = cohort_size(config.participation, config.clients)
    on_cpu = jax.default_backend() == "cpu"
    chunk = engine.Chunked(config.engine.clients_at_once or (1 if on_cpu else min(10, cohort)))
    num_devices = min(len(jax.devices()), cohort)
    layout = config.engine.layout
    if layout == "auto":
        layout = "sharded" if num_devices > 1 else "chunked"
    if layout == "sharded":
        return engine.Sharded(num_devices, chunk)
    return {"chunked": chunk, "vectorized": engine.Vectorized(), "loop": engine.Loop()}[layout]


def class_named(what: str, package: Any, name: str) -> Callable:
    """The class of the module ``name`` in ``package``."""
    modules = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name not in _NOT_CHOICES]
    check_name(what, name, modules)
    module = importlib.import_module(f"{package.__name__}.{name}")
    return next(v for k, v in vars(module).items() if k.lower() == name.replace("_", "") and inspect.isclass(v))


def getattr_named(what: str, module: Any, name: str) -> Callable:
    """The public function ``name`` of ``module``."""
    functions = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
    }
    check_name(what, name, functions)
    return functions[name]


def call(what: str, function: Callable, arguments: Mapping[str, Any], **given: Any) -> Any:
    """``function(**arguments, **given)``; for an argument that it does not take, a UserError with the nearest one."""
    accepted = {name: p for name, p in inspect.signature(function).parameters.items() if name not in given}
    for name, value in arguments.items():
        check_name(f"option of {what}", name, accepted)
        _check_type(f"{what}.{name}", value, accepted[name].annotation)
    return function(**arguments, **given)


def _check_type(name, value, annotation):
    """Plain annotations only: a number may be given as an int, everything else as what it says."""
    expected = {float: (int, float), int: (int,), str: (str,), bool: (bool,)}.get(annotation)
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
