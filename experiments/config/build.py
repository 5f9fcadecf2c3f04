"""Builds data, networks, schedules and layouts from a config; ``algorithms.py`` builds the algorithm."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.config import algorithms
from experiments.config.cells import OF_ALL_DATA
from experiments.config.names import (
    call,
    check_arguments,
    check_name,
    chosen_name,
    explained,
    function_named,
    functions,
    imported,
    network,
    without,
)
from experiments.config.plain_values import plain
from experiments.configs import base
from fedjax_collapse import FedAvg, Participation, engine, measurements
from fedjax_collapse.core import processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import Federation, OwnSplit, augment, partition, sources
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.ownership import owned
from fedjax_collapse.data.reading.index_file import NamedParts
from fedjax_collapse.nn import task
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.nn.model import Model
from fedjax_collapse.nn.pretrained import load_pretrained
from fedjax_collapse.privacy import guarantee
from fedjax_collapse.privacy.guarantee import Privacy
from fedjax_collapse.run.own_tests import Finetuning
from fedjax_collapse.run.simulation import Schedule
from fedjax_collapse.schema.options import Decay, Positive, Seed, check_value
from fedjax_collapse.schema.source_code import file_of
from fedjax_collapse.schema.user_code import check_signature

SAMPLERS = {
    "uniform": engine.Uniform,
    "uniform_on_host": engine.HostUniform,
    "poisson": engine.Poisson,
    "by_size": engine.BySize,
    "available": engine.Available,
}
STORE = "store"  # the data source that is a folder on disk, of ``data.store``
_FOLDER, _VALIDATION = OF_ALL_DATA
_PATH = "path"  # the argument of a source or partition that is a file or folder
_OF_STORE = ("natural", "given")  # partitions that keep the clients of a source
OWN_TESTS = {"shares": lambda: None, "split": OwnSplit, "given": lambda: None}  # how a client gets its own test rows
_OF_SOURCES = {  # what a partition may need besides labels, and what gives it
    "domains": "",
    "owners": ", such as parquet with client_column",
    "coarse_labels": ", such as parquet with coarse_column",
}
HEADS = {"random": None, "orthogonal": orthogonal_head}


def federations(config: Mapping[str, Any], seeds: Iterable[int]) -> dict[int, Federation]:
    """Returns the federation of every seed, padded to one capacity so that all of them share one compiled program.

    Raises:
        UserError: the source or the partition does not exist, has invalid options, or they do not fit each other.
    """
    fraction = validation_fraction(config)
    if (found := _from_store(config, fraction)) is not None:
        return dict.fromkeys(seeds, found)
    source, split = data_source(config["data"]), _own_split(config["own_tests"])
    storage = _storage(config, source)
    if fraction:
        source = _with_validation(config, source, fraction)
    seeds, divided = tuple(seeds), source if split is None else source.pooled()
    partitions = _partitions(config, divided, seeds)
    names = {seed: _client_names(config, divided, parts) for seed, parts in partitions.items()}
    capacity = max(np.size(rows) for parts in partitions.values() for rows in parts)
    if split is None:
        made = Federation.from_source(source, partitions[seeds[0]], capacity, storage)
        made = {
            seed: made.with_partition(parts, capacity)._replace(client_names=names[seed])
            for seed, parts in partitions.items()
        }
        if config["own_tests"]["name"] != "given":
            return made
        return {seed: made[seed].with_tests(_given_tests(config, source, parts)) for seed, parts in partitions.items()}
    own = {
        seed: Federation.from_split(source, parts, split._replace(seed=_draw_seed(config, seed)), capacity, storage)
        for seed, parts in partitions.items()
    }
    train = own[seeds[0]].train
    return {seed: made._replace(train=train, client_names=names[seed]) for seed, made in own.items()}


def validation_fraction(config: Mapping[str, Any]) -> float:
    """Returns the fraction of the training examples of any data source that no client gets, for validation."""
    fraction = config["data"].get(_VALIDATION, 0.0)
    check_value(f"data.{_VALIDATION}", fraction, Decay)
    return fraction


def _with_validation(config, source, fraction):
    """Returns the source with a validation part, the same for all arms and seeds."""
    name = chosen_name("partition", config["partition"], "name")
    if ":" not in name and _PATH in inspect.signature(function_named("partition", partition, name)).parameters:
        raise UserError(
            f"data.{_VALIDATION} {fraction:g}: partition {name} reads rows of all training examples, but some of them "
            "would be held out; expected 0, or another partition"
        )
    return source.with_validation(fraction)


def _from_store(config, fraction):
    """Returns the federation of a store on disk, the same for all seeds; None for another data source."""
    source, options = chosen_name("data", config["data"], "source"), without(config["data"], "source", *OF_ALL_DATA)
    name, _, folder = source.partition(":")
    if name != STORE or (is_custom_source(source) and file_of(name) is not None):
        return None
    if config["partition"]["name"] not in _OF_STORE or config["own_tests"]["name"] != "shares":
        raise UserError(
            f"data source {source}: its clients are those of the store, without own tests; expected partition.name="
            f"{_OF_STORE[0]} and own_tests.name=shares"
        )
    if fraction:
        raise UserError(
            f"data.{_VALIDATION} {fraction:g}: nothing is held out from {source}, which is not read as a whole; "
            "expected 0, or the source from which it was converted"
        )
    if not folder:
        raise UserError(f"data.source {name!r} lacks its folder: expected {name}:<folder>")
    storage = config["engine"]["storage"]
    folder = str(Path(_folder(config["data"])) / folder)
    given = dict(folder=folder, clients=config["clients"], storage="disk" if storage == "auto" else storage)
    return call("data", Federation.from_store, options, **given)


def _own_split(config):
    """Returns how each client's examples are divided; None if its tests are rows of the source's test set."""
    name = chosen_name("own_tests", config, "name")
    check_name("own_tests", name, OWN_TESTS)
    check_arguments("own_tests", OWN_TESTS[name], without(config, "name"), dict(seed=0))
    return OWN_TESTS[name](**without(config, "name"))


def _given_tests(config, source, parts):
    """Returns each client's test rows, as the source gives them."""
    if source.test_owners is None or config["partition"]["name"] != "given":
        raise UserError(
            f"own_tests given: data source {config['data']['source']} with partition {config['partition']['name']}; "
            "expected data that are divided among clients, such as pfllib:<path>, and partition given, or choose split"
        )
    rows_of = dict(zip(np.unique(source.test_owners), rows_by_class(source.test_owners), strict=True))
    return [rows_of.get(owner, np.zeros(0, int)) for owner in _owners(source, parts)]


def _client_names(config, source, parts):
    """Returns the names of natural clients, if the clients are these, or those that the partition gives."""
    if parts.names:
        return parts.names
    if config["partition"]["name"] != "given" or not source.client_names:
        return ()
    return tuple(source.client_names[owner] for owner in _owners(source, parts))


def _owners(source, parts):
    """Returns the owner of each client of the partition ``given``."""
    return [int(source.owners[rows[0]]) for rows in parts]


def _storage(config, source):
    """Returns where the examples are stored; with ``auto`` on the device unless they take most of its memory."""
    if config["engine"]["storage"] != "auto":
        return config["engine"]["storage"]
    size, device = source.images.nbytes + source.test_images.nbytes, engine.own_devices()[:1]
    return "device" if engine.memory.fits(size, device) else "host"


def data_source(config: Mapping[str, Any]) -> sources.Source:
    """Returns the data of ``source``: a function of ``data/sources`` and, after a colon, its first argument.

    A custom function is named as ``my_module:my_source``. Nothing is held out for validation yet.

    Raises:
        UserError: there is no such function, its argument is missing or unexpected, or the data cannot be read.
    """
    source, options = chosen_name("data", config, "source"), without(config, "source", *OF_ALL_DATA)
    (name, _, argument), folder = source.partition(":"), _folder(config)
    if is_custom_source(source) and file_of(name) is not None:
        options |= {_FOLDER: folder} if folder else {}
        check_value(
            f"data source {source}", made := call("data", imported("data source", source), options), sources.Source
        )
        return made
    function = function_named("data source", sources, name)
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters.values()))
    needs_argument = first.default is first.empty
    if needs_argument and not argument:
        raise UserError(f"data.source {name!r} lacks its {first.name}: expected {name}:<{first.name}>")
    if argument and not needs_argument:
        raise UserError(f"data.source '{name}:{argument}': nothing can follow {name}; its options are keys of data")
    if folder and first.name == _PATH:
        argument = str(Path(folder) / argument)
    elif folder and (option := next((name for name in (_FOLDER, "data_dir") if name in parameters), "")):
        options.setdefault(option, folder)
    elif folder:
        raise UserError(f"data.{_FOLDER} {folder!r}: data source {name} reads no files; leave it out")
    return call("data", function, options, **({first.name: argument} if needs_argument else {}))


def _folder(data):
    """Returns where the data of all settings are; empty if that is not given."""
    folder = data.get(_FOLDER, "")
    check_value(f"data.{_FOLDER}", folder, str)
    return folder


def is_custom_source(source: str) -> bool:
    """Returns whether a data source is ``module:function``, rather than a function of the library and its argument."""
    return ":" in source and source.partition(":")[0] not in functions(sources)


def _partitions(config, source, seeds):
    """Returns the rows of every client, for every seed."""
    name = chosen_name("partition", config["partition"], "name")
    draw = function_named("partition", partition, name)
    arguments, accepted = without(config["partition"], "name"), inspect.signature(draw).parameters
    if "alpha" not in accepted:  # so that --config.partition.name=iid needs no other change
        arguments.pop("alpha", None)
    check_signature(f"partition {name}", draw, by_name=("labels", "num_clients", "seed"), has_options=True)
    given = dict(labels=_classes(config, source), num_clients=config["clients"])
    for needed in _OF_SOURCES.keys() & set(accepted):
        if (of_examples := getattr(source, needed)) is None:
            raise UserError(
                f"partition {name}: data source {config['data']['source']} has no {needed}; choose another one"
                f"{_OF_SOURCES[needed]}, or another partition"
            )
        given[needed] = of_examples
    fixed_seed = arguments.pop("seed", None)
    check_value("partition.seed", fixed_seed, Seed | None)
    seed_of = {seed: _draw_seed(config, seed) for seed in seeds}
    return {seed: _partition(config, draw, arguments, **given, seed=own) for seed, own in seed_of.items()}


def _classes(config, source):
    """Returns the classes that a partition divides: the labels, or one class if each example has several labels.

    Raises:
        UserError: it has several, and the partition needs classes.
    """
    name, valid = config["partition"]["name"], partition.WITHOUT_CLASSES
    if source.labels.ndim == 1 or ":" in name:
        return source.labels
    if name not in valid:
        raise UserError(
            f"partition {name}: it divides classes, but data source {config['data']['source']} has several labels for "
            f"each example ({source.task}); expected one of {', '.join(valid)}"
        )
    return np.zeros(len(source.labels), np.int32)


def _draw_seed(config, seed):
    """Returns the seed with which a run's data are divided: fixed, or its own."""
    fixed = config["partition"].get("seed")
    return seed if fixed is None else fixed


def _partition(config, draw, arguments, **given):
    """Returns the rows of every client; ``draw`` may be a custom function."""
    try:
        drawn = call("partition", draw, arguments, **given)
        parts = NamedParts(owned(drawn, most=config["clients"]))
        parts.names = getattr(drawn, "names", ())
    except BaseException as error:
        raise explained("partition", error) from error
    if len(parts) < config["clients"]:
        name, clients = config["partition"]["name"], config["clients"]
        raise UserError(f"partition: {name} returned {len(parts)} of clients={clients} clients")
    return parts


def model(config: Mapping[str, Any], federation: Federation) -> Model:
    """Returns the network, with as many classes as the data, for images of the size after augmentation."""
    name = chosen_name("network", config["network"], "name")
    arguments = without(config["network"], "name", "weights", "adapters")
    if arguments.get("lowering") in ("timed", "rules"):  # timed in ``runs.make_plan``, by the rules until then
        arguments["lowering"] = "auto"
    check_name("head", config["head"], HEADS)
    augmented = _augmented_shape(config, federation)
    predicted = task.named(federation.task, federation.num_classes)
    predicted.check_classes(federation.num_classes)
    module = network(name, arguments, federation.num_classes)
    try:
        built = Model(
            module, augmented, HEADS[config["head"]], predicted, federation.input_dtype, _adapters(config["network"])
        )
        if weights := config["network"].get("weights"):
            built = load_pretrained(built, weights)
        jax.eval_shape(built.init, jax.random.key(0))  # raises for invalid options or image sizes
    except BaseException as error:
        raise explained(f"network {name} cannot be made with these options", error) from error
    return built


def _adapters(config):
    """Returns the low-rank adapters of the network's layers, if any."""
    return call("network.adapters", LoRA, config["adapters"]) if config.get("adapters") else None


def _augmented_shape(config, federation):
    """Returns the shape of an image as the network sees it."""
    augmented = algorithms.augmentation(config["training"].get("augmentation", "none"))
    try:
        return augment.output_shape(augmented, federation.input_shape)
    except BaseException as error:
        raise explained(f"augmentation {config['training']['augmentation']}", error) from error


def schedule(config: Mapping[str, Any]) -> Schedule:
    """Returns the schedule: the number of rounds, who takes part in them, and what is measured between them."""
    options = without(config["cohort"], "sampler", "clock")
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
        if function is not None
    )
    finetuning = config["finetuning"] or None
    if finetuning is not None:
        finetuning = call("finetuning", Finetuning, finetuning)
    keys = ("rounds", "evaluate_every", "checkpoint_every", "measure_every", "on_nan", "stop_at_accuracy", "save_local")
    given = {key: config[key] for key in keys}
    privacy = call("privacy", Privacy, without(config["privacy"], "epsilon")) if config["privacy"] else None
    given |= dict(measurements=measured, finetuning=finetuning, privacy=privacy)
    return Schedule(participation=rule, watch=_watch(config["watch"]), **given)


def algorithm(config: Mapping[str, Any]) -> FedAvg:
    """Returns the algorithm of ``algorithms.py``; with ``privacy.epsilon``, with the noise that it needs.

    Raises:
        UserError: the config is invalid, or no noise is enough.
    """
    made = algorithms.algorithm(config)
    if "epsilon" not in config["privacy"]:
        return made
    planned = schedule(config)
    planned.privacy.check()
    for name, method in made.having("perturb").items():
        if "noise_multiplier" in config["methods"][name]:
            raise UserError(
                f"privacy.epsilon and methods.{name}.noise_multiplier: each follows from the other, give one"
            )
        check_value("privacy.epsilon", epsilon := config["privacy"]["epsilon"], Positive)
        quiet = made.replace(methods={**made.methods, name: method.replace(noise_multiplier=0.0)})
        needed = guarantee.noise_needed(
            planned.privacy, epsilon, quiet, planned.rule, config["rounds"], config["clients"]
        )
        return made.replace(methods={**made.methods, name: method.replace(noise_multiplier=needed)})
    raise UserError("privacy.epsilon: no method adds noise to the mean upload; expected methods.dp_fedavg")


def check_privacy(config: Mapping[str, Any]) -> None:
    """Raises UserError if a cell's privacy does not hold or cannot be accounted for; neither traces nor searches noise.

    Also raises for a key that privacy rejects (``configs/base.py``) with another value than its default.
    """
    made = algorithms.algorithm(config)
    if not (config["privacy"] or made.having("perturb")):
        return
    defaults = plain(base.get_config())
    for path, key in base.KEYS.items():
        here, default = (
            functools.reduce(lambda of, part: of.get(part, {}), path.split("."), of) for of in (config, defaults)
        )
        if key.privacy == "rejected" and not key.accepted and here != default:
            raise UserError(f"config.{path} {here!r}: not known to be private, expected its default, {default!r}")
    if "epsilon" in config["privacy"]:  # the noise that it needs comes later, here any
        some = {name: method.replace(noise_multiplier=1e-9) for name, method in made.having("perturb").items()}
        made = made.replace(methods={**made.methods, **some})
    planned, is_own = schedule(config).resolved(made), made.is_personal or config["own_tests"]["name"] != "shares"
    guarantee.check(
        planned.privacy, made.enabled(), planned.rule, planned.rounds, config["clients"],
        on_nan=planned.on_nan, is_compiled=config["engine"]["layout"] != "loop",
        stops_at_own=planned.stop_at_accuracy > 0 and is_own, has_validation=validation_fraction(config) > 0,
    )  # fmt: skip


def _sampler(config):
    """Returns the sampler of cohorts: one of ``engine/samplers.py``, or a custom class."""
    name = chosen_name("cohort.sampler", config, "name")
    if ":" in name:
        kind = imported("cohort.sampler", name)
        if not (inspect.isclass(kind) and issubclass(kind, engine.Uniform)):
            raise UserError(f"cohort.sampler {name!r}: expected a class derived from fedjax_collapse.engine.Uniform")
    else:
        check_name("cohort.sampler", name, SAMPLERS)
        kind = SAMPLERS[name]
    return _with_arrays("cohort.sampler", kind, without(config, "name"))


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


def client_map(config: Mapping[str, Any], network: Model) -> engine.ClientMap:
    """Returns the layout of clients. ``auto``: over all devices, with a good number of clients at once on each."""
    options = config["engine"]
    cohort = schedule(config).rule.cohort_size(config["clients"])
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
