"""Writes a data source, client by client, as a store on disk, from which rounds read only their cohorts.

    fedjax-collapse convert SOURCE FOLDER [--data.KEY=VALUE ...]
    fedjax-collapse convert SOURCE FOLDER --clients=N --partition.name=NAME [--partition.KEY=VALUE ...] [--seed=SEED]
    fedjax-collapse convert --check FOLDER

SOURCE is what ``data.source`` of a config would be, and ``data`` and ``partition`` have the keys of a config. Natural
clients of tff, pfl, leaf, pfllib, table and parquet are read one after another. Other sources, and all with a
partition, are read into memory first. Started again after it was interrupted, the command continues, after it has
verified what is written. ``--check`` compares all of a store with its checksums, of which a round compares those of its
cohort. Exit status: 0, or 2 after a one-line message about wrong input.
"""

import inspect
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.configs import base
from experiments.parser import Parser, literal, reports_errors
from experiments.waiting import wait
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data import Federation, sources
from fedjax_collapse.data import partition as partitions
from fedjax_collapse.data.store import StoreWriter, open_store
from fedjax_collapse.data.stream import ClientExamples, Stream, class_names_of, mean_and_std_of
from fedjax_collapse.schema.names import functions
from fedjax_collapse.schema.options import check_value, hints
from fedjax_collapse.schema.values import from_values

_GIVEN = ("labels", "num_clients", "owners", "domains", "coarse_labels")  # by the data, to a partition
_TEST_ROWS = 2**12  # of a federation in memory that are written at once


@reports_errors
def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    parser = command_line()
    own = vars(parser.parse_args(arguments))
    if own["check"]:
        print(check(own["check"]))
        return 0
    if not own["folder"]:
        parser.error("the following arguments are required: SOURCE, FOLDER; or --check FOLDER")
    options = {part: {} for part in ("data", "partition")}
    for key, value in own.items():
        part, _, name = key.partition(".")
        if name and value is not None:
            options[part][name] = value
    chosen = {key: own[key] for key in ("source", "folder", "clients", "seed")}
    print(convert(**chosen, **options))
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="such as tff:stackoverflow.sqlite")
    of_store = "of the store; made if it does not exist"
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=of_store)
    parser.add_argument("--clients", type=int, metavar="N", default=0, help="with a partition, the number of clients")
    parser.add_argument("--seed", type=int, default=0, help="of the partition")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="compares a store with its checksums")
    for part, module in (("data", sources), ("partition", partitions)):
        for name, owners in sorted(_options_of(module).items()):
            parser.add_argument(f"--{part}.{name}", type=literal, metavar="VALUE", help=f"of {', '.join(owners)}")
    return parser


def check(folder: Path) -> str:
    """Compares a store with its checksums; returns what is in it, in words.

    Raises:
        UserError: it is no store, or damaged; the message names what.
    """
    store = open_store(folder)
    with wait(f"reading {folder}"):
        store.verify()
        tested = len(store.test[1]) if store.facts["test_rows"] else 0
    examples = f"{store.offsets[-1]} training and {tested} test examples"
    return f"{folder}: {store.num_clients} clients, {examples}, all as they were written"


def convert(
    source: str, folder: Path, data: Mapping[str, Any], partition: Mapping[str, Any], clients: int = 0, seed: int = 0
) -> str:
    """Writes the store; returns what was written, in words.

    Args:
        source: ``data.source`` of a config.
        folder: the folder of the store.
        data: the other keys of ``data``.
        partition: the keys of ``partition``; empty for natural clients.
        clients: the number of clients of the partition.
        seed: the seed of the partition.

    Raises:
        UserError: the source or an option is invalid, or the folder holds something else.
    """
    described = dict(source=source, data=dict(sorted(data.items())))
    if partition or clients:
        described |= dict(partition=dict(sorted(partition.items())), clients=clients, seed=seed)
    stream = None if partition or clients else open_stream(source, data)
    if stream is None:
        with wait(f"reading {source}"):
            federation = _divided(source, data, partition, clients, seed)
        stream = stream_of(federation)
        class_names, mean, std = federation.class_names, federation.train.mean, federation.train.std
    else:
        with wait(f"reading the classes of {source}"):
            class_names = class_names_of(stream)
        mean, std = mean_and_std_of(stream, next(stream.train(0)).inputs) if stream.normalisation else (None, None)
    what = json.dumps(described, default=str)
    with (
        StoreWriter(folder, class_names, mean, std, stream.task, what) as store,
        wait(f"writing {folder}", stream.num_clients) as advance,
    ):
        advance(resumed := store.done)
        for client, inputs, labels, _ in stream.train(resumed):
            store.add(str(client), inputs, labels)
            advance()
        tested = 0
        for _, inputs, labels, _ in stream.test():
            store.add_test(inputs, labels)
            tested += len(labels)
    again = f", {resumed} of them before" if resumed else ""
    return f"wrote {folder}: {store.done} clients{again}, {store.rows} training and {tested} test examples"


def open_stream(source: str, data: Mapping[str, Any]) -> Stream | None:
    """Returns the natural clients of a source; None if it is only read into memory.

    Raises:
        UserError: an option is invalid, or the data cannot be read.
    """
    name, _, path = source.partition(":")
    if name not in sources.STREAMS or (name in ("parquet", "table") and not data.get("client_column")):
        return None
    if not path:
        raise UserError(f"data.source {name!r} lacks its path: expected {name}:<path>")
    signature = inspect.signature(function := functions(sources)[name])
    for key, value in data.items():
        if key not in signature.parameters:
            known = ", ".join(list(signature.parameters)[1:])
            raise UserError(f"data.{key}: {name} has no such option; expected one of {known}")
        check_value(f"data.{key}", value, hints(function)[key])
    bound = signature.bind(path, **data)
    bound.apply_defaults()
    return from_values("data", sources.STREAMS[name], bound.arguments)


def stream_of(federation: Federation) -> Stream:
    """Returns the clients of a federation in memory, by their names, else by their numbers."""
    rows, train, test = federation.owned_rows(), federation.train, federation.test
    names = federation.client_names or list(map(str, range(len(rows))))

    def clients(first: int) -> Iterator[ClientExamples]:
        for name, own in itertools.islice(zip(names, rows, strict=True), first, None):
            yield ClientExamples(name, np.asarray(train.inputs)[own], np.asarray(train.labels)[own])

    def tests() -> Iterator[ClientExamples]:
        for first in range(0, len(test.labels), _TEST_ROWS):
            own = slice(first, first + _TEST_ROWS)
            yield ClientExamples(None, np.asarray(test.inputs)[own], np.asarray(test.labels)[own])

    return Stream("", clients, tests, len(rows), federation.class_names, getattr(federation, "task", "classification"))


def _options_of(module):
    """Returns the functions of a module that take each of their arguments, of those that a config may set."""
    options: dict[str, list[str]] = {} if module is sources else {"name": ["all"]}
    for function, made in sorted(functions(module).items()):
        for place, (name, argument) in enumerate(inspect.signature(made).parameters.items()):
            is_path = place == 0 and argument.default is inspect.Parameter.empty  # it follows the colon, or is given
            if not is_path and name not in _GIVEN:
                options.setdefault(name, []).append(function)
    return options


def _divided(source, data, divided, clients, seed):
    """Returns the federation of a config with these keys, in memory; without a partition of natural clients."""
    config = plain(base.get_config())
    config["data"] = dict(source=source, **data)
    if not divided and not clients:
        owners = build.data_source(config["data"]).owners
        if owners is None:
            raise UserError(f"{source}: no natural clients; give --clients and --partition.name, or data.client_column")
        divided, clients = dict(name="given"), len(np.unique(owners))
    if "name" not in divided or clients < 1:
        raise UserError("--clients and --partition.name: expected both, or for natural clients none")
    config |= dict(partition=dict(divided), clients=clients, engine=config["engine"] | dict(storage="host"))
    return build.federations(config, [seed])[seed]
