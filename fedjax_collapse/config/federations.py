"""Builds the federations of a config: its data source, divided among clients by its partition."""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.config.cells import OF_ALL_DATA
from fedjax_collapse.config.keys import PARTITIONS, SOURCES
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import Federation, OwnSplit, partition, sources
from fedjax_collapse.data.class_holders import rows_by_class
from fedjax_collapse.data.ownership import owned
from fedjax_collapse.data.reading.index_file import NamedParts
from fedjax_collapse.schema.names import check_name, chosen_name, found, without
from fedjax_collapse.schema.options import check_value
from fedjax_collapse.schema.source_code import file_of
from fedjax_collapse.schema.user_code import check_signature, explaining
from fedjax_collapse.schema.values import from_values

STORE = "store"  # the data source that is a folder on disk, of ``data.store``
_PATH = "path"  # the argument of a source or partition that is a file or folder
_OF_STORE = ("natural", "given")  # partitions that keep the clients of a source
OWN_TESTS = {"shares": lambda: None, "split": OwnSplit, "given": lambda: None}  # how a client gets its own test rows
_OF_SOURCES = {  # data that a partition may need besides labels, and sources with them
    "domains": "",
    "owners": ", such as parquet with client_column",
    "coarse_labels": ", such as parquet with coarse_column",
}


def federations(config: Mapping[str, Any], seeds: Iterable[int]) -> dict[int, Federation]:
    """Returns the federation of every seed, padded to one capacity, so that all share a compiled program.

    Raises:
        UserError: the source or the partition does not exist, has invalid options, or does not fit the other.
    """
    fraction = config["data"].get("validation_fraction", 0.0)
    if (stored := _from_store(config, fraction)) is not None:
        return dict.fromkeys(seeds, stored)
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


def _with_validation(config, source, fraction):
    """Returns the source with a validation part, the same for all arms and seeds."""
    name = chosen_name("partition", config["partition"])
    if ":" not in name and _PATH in inspect.signature(found("partition", name, PARTITIONS)).parameters:
        raise UserError(
            f"data.validation_fraction {fraction:g}: partition {name} reads rows of all training examples, but some of "
            "them would be held out; expected 0, or another partition"
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
            f"data source {source}: it has its own clients and no own tests; expected partition.name="
            f"{_OF_STORE[0]} and own_tests.name=shares"
        )
    if fraction:
        raise UserError(
            f"data.validation_fraction {fraction:g}: no examples can be held out of {source}, read in parts; "
            "expected 0, or the source from which it was converted"
        )
    if not folder:
        raise UserError(f"data.source {name!r} lacks its folder: expected {name}:<folder>")
    storage = config["engine"]["storage"]
    folder = str(Path(config["data"].get("folder", "")) / folder)
    given = dict(folder=folder, clients=config["clients"], storage="disk" if storage == "auto" else storage)
    return from_values("data", Federation.from_store, options, **given)


def _own_split(config):
    """Returns the division of each client's examples; None if its tests are rows of the source's test set."""
    name = chosen_name("own_tests", config)
    check_name("own_tests", name, OWN_TESTS)
    return from_values("own_tests", OWN_TESTS[name], without(config, "name"), **dict(seed=0) if name == "split" else {})


def _given_tests(config, source, parts):
    """Returns each client's test rows in the source."""
    if source.test_owners is None or config["partition"]["name"] != "given":
        raise UserError(
            f"own_tests given: data source {config['data']['source']} with partition {config['partition']['name']}; "
            "expected data that are divided among clients, such as pfllib:<path>, and partition given, or choose split"
        )
    rows_of = dict(zip(np.unique(source.test_owners), rows_by_class(source.test_owners), strict=True))
    return [rows_of.get(owner, np.zeros(0, int)) for owner in _owners(source, parts)]


def _client_names(config, source, parts):
    """Returns the names of natural clients, or the names that the partition gives; empty without names."""
    if parts.names:
        return parts.names
    if config["partition"]["name"] != "given" or not source.client_names:
        return ()
    return tuple(source.client_names[owner] for owner in _owners(source, parts))


def _owners(source, parts):
    """Returns the owner of each client of the partition ``given``."""
    return [int(source.owners[rows[0]]) for rows in parts]


def _storage(config, source):
    """Returns where the examples are stored: with ``auto`` on the device, unless they take most of its memory."""
    if config["engine"]["storage"] != "auto":
        return config["engine"]["storage"]
    size, device = source.images.nbytes + source.test_images.nbytes, engine.own_devices()[:1]
    return "device" if engine.memory.fits(size, device) else "host"


def data_source(config: Mapping[str, Any]) -> sources.Source:
    """Returns the data of ``source``: a function of ``data/sources.py`` and, after a colon, its first argument.

    A custom function is named as ``my_module:my_source``. The data have no validation part yet.

    Raises:
        UserError: there is no such function, its argument is missing or unexpected, or the data cannot be read.
    """
    source, options = chosen_name("data", config, "source"), without(config, "source", *OF_ALL_DATA)
    (name, _, argument), folder = source.partition(":"), config.get("folder", "")
    if is_custom_source(source) and file_of(name) is not None:
        options |= {"folder": folder} if folder else {}
        made = from_values("data", found("data source", source, {}), options)
        check_value(f"data source {source}", made, sources.Source)
        return made
    function = found("data source", name, SOURCES)
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters.values()))
    needs_argument = first.default is first.empty
    if needs_argument and not argument:
        raise UserError(f"data.source {name!r} lacks its {first.name}: expected {name}:<{first.name}>")
    if argument and not needs_argument:
        raise UserError(f"data.source '{name}:{argument}': expected {name} alone; its options are keys of data")
    if folder and first.name == _PATH:
        argument = str(Path(folder) / argument)
    elif folder and (option := next((name for name in ("folder", "data_dir") if name in parameters), "")):
        options.setdefault(option, folder)
    elif folder:
        raise UserError(f"data.folder {folder!r}: data source {name} reads no files; leave it out")
    return from_values("data", function, options, **({first.name: argument} if needs_argument else {}))


def is_custom_source(source: str) -> bool:
    """Returns whether a data source is ``module:function``, rather than a function of the library and its argument."""
    return ":" in source and source.partition(":")[0] not in SOURCES


def _partitions(config, source, seeds):
    """Returns the rows of every client, for every seed."""
    name = chosen_name("partition", config["partition"])
    draw = found("partition", name, PARTITIONS)
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
    arguments.pop("seed", None)
    seed_of = {seed: _draw_seed(config, seed) for seed in seeds}
    return {seed: _partition(config, draw, arguments, **given, seed=own) for seed, own in seed_of.items()}


def _classes(config, source):
    """Returns the classes that a partition divides: the labels, or one class if each example has several labels.

    Raises:
        UserError: an example has several labels, and the partition needs classes.
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
    """Returns the seed of a run's partition: fixed, or the seed of the run."""
    fixed = config["partition"].get("seed")
    return seed if fixed is None else fixed


def _partition(config, draw, arguments, **given):
    """Returns the rows of every client; ``draw`` may be a custom function."""
    with explaining("partition"):
        drawn = from_values("partition", draw, arguments, **given)
        parts = NamedParts(owned(drawn, most=config["clients"]))
        parts.names = getattr(drawn, "names", ())
    if len(parts) < config["clients"]:
        name, clients = config["partition"]["name"], config["clients"]
        raise UserError(f"partition: {name} returned {len(parts)} of clients={clients} clients")
    return parts
