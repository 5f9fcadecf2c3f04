"""Compiles networks and rounds for TPUs and GPUs, without the device, and estimates what they cost there.

    fedjax-collapse compile-for --target=tpu:v5e:2x2 --networks=small_cnn,resnet20 --lowerings=auto,patches
    fedjax-collapse compile-for --target=gpu:h100 --networks=small_cnn --clients=1,10 --dtypes=float32,bfloat16
    fedjax-collapse compile-for --target=gpu:h100:8 --methods=fedavg,scaffold --clients=80
    fedjax-collapse compile-for --target=tpu:v5e:2x2 --option=norm=none --option="channels=(32, 64, 64)"
    fedjax-collapse compile-for --papers

Prints a row for a local step of each network (``--networks``) with so many clients side by side, each with its own
weights. The TPU's compiler estimates cycles; for a GPU the bytes that the program moves give a bound, since matrix
units are rarely the limit here. Neither is a measurement. With ``--methods``, prints a row for a round of each method
on all devices of the target, with the exchanges between them, and with as many clients at once as fit into their
memory.

Products have the platform's default precision: bfloat16 passes on a TPU, TF32 on a GPU.

``--papers`` prints a row for a local step of each network and data set of the papers' configs, with its samples per
second on an H100: measured, or estimated from a measured network by the operations of both. It compiles nothing.

The compilers are packages: ``pip install -e ".[tpu]"``, ``pip install -e ".[gpu]"``.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import jax

from experiments.benchmarks import published
from experiments.benchmarks.arguments import words, writable
from experiments.benchmarks.compiling import costs, programs, topologies
from experiments.benchmarks.compiling.topologies import Topology
from experiments.benchmarks.overheads import TRAINING, accepted, methods
from experiments.benchmarks.workloads import NOT_CONVOLUTIONAL
from experiments.parser import Parser, literal, names_option, of_kind, reports_errors
from experiments.waiting import wait
from fedjax_collapse import engine
from fedjax_collapse.config.keys import METHODS, NETWORKS
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.layers import DTYPES
from fedjax_collapse.nn.lowerings.convolution import LOWERINGS
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.options import CUSTOM, Count
from fedjax_collapse.schema.user_code import explain

_number = of_kind(Count)
_AS_ON_CPU = "cpu"
_MIB = 2**20
_BATCH_SIZE = 32
Row = dict[str, Any]


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0, or 2 after a one-line message about wrong input."""
    asked = command_line().parse_args(argv)
    if asked.papers:
        found = published.rows()
    else:
        found = (round_rows if asked.methods else step_rows)(topologies.find(asked.target), asked)
    rows = []
    try:
        with wait("reading configs" if asked.papers else f"compiling for {asked.target}") as advance:
            for row in found:
                cells = (f"{cell:,}" if isinstance(cell, int | float) else cell for cell in row.values())
                heading = "" if rows else f"| {' | '.join(row)} |\n|{'---|' * len(row)}\n"
                print(f"{heading}| {' | '.join(cells)} |", flush=True)
                rows.append(row)
                advance()
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"target {asked.target}: its compiler failed ({explain(error)})") from error
    if asked.json:
        asked.json.write_text(json.dumps({"target": asked.target, "rows": rows}, indent=2) + "\n")
    return 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    targets = ("tpu:v5e:2x2", "gpu:h100", "gpu:a100", "gpu:h100:8")
    of_what = parser.add_mutually_exclusive_group(required=True)
    of_what.add_argument("--papers", action="store_true", help="samples per second of the papers' networks and data")
    of_what.add_argument("--target", **names_option(targets, "such as") | {"metavar": "TARGET"})
    parser.add_argument("--networks", type=words, default=["small_cnn"], **names_option(NETWORKS, "steps of", CUSTOM))
    parser.add_argument("--methods", type=words, default=[], **names_option(METHODS, "whole rounds of", CUSTOM))
    lowerings = (*LOWERINGS, _AS_ON_CPU)
    of = f"of convolutions ({_AS_ON_CPU}: what auto is on a CPU, to compare with):"
    parser.add_argument("--lowerings", type=words, default=["auto"], **names_option(lowerings, of))
    parser.add_argument("--dtypes", type=words, default=["float32"], **names_option(DTYPES[1:], "of"))
    of = "of the networks; repeatable"
    parser.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help=of)
    parser.add_argument("--image_size", type=_number, help="height and width, by default 32 where that suffices")
    adapters = "low-rank adapters of the networks' layers, such as \"rank=8,layers=('query','value')\""
    parser.add_argument("--adapters", type=_arguments, metavar="NAME=VALUE,...", help=adapters)
    parser.add_argument("--clients", type=_numbers, default=[10], help="of a step side by side; of a round in all")
    parser.add_argument("--clients_at_once", type=_number, default=10, help="of a round, on each device")
    batch_size = f"of each client, by default {_BATCH_SIZE} in a step and 64 in a round"
    parser.add_argument("--batch_size", type=_number, help=batch_size)
    parser.add_argument("--json", type=writable, metavar="FILE", help="where to write the rows too")
    return parser


def step_rows(topology: Topology, asked: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for a step of each network, dtype, lowering and number of clients."""
    for chosen, model in _models(topology, asked):
        clients, batch_size = chosen["clients"], asked.batch_size or _BATCH_SIZE
        lowered = programs.step(model, topology.devices[0], clients, batch_size)
        cost = costs.compile_program(lowered, topology.chip)
        yield chosen | {
            "us/client-step": round(cost.seconds / clients * 1e6, 1),
            "samples/s": round(clients * batch_size / cost.seconds),
            "GB moved": round(cost.bytes_moved / 1e9, 3),
            **_cells(cost),
        }


def round_rows(topology: Topology, asked: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for a round of each method, network and number of clients, on all devices of the target."""
    models, devices = list(_models(topology, asked)), topology.devices
    freeze = "base" if asked.adapters else "none"
    training = TRAINING.replace(batch_size=asked.batch_size or TRAINING.batch_size, freeze=freeze)
    found = methods(training=training, model=models[0][1] if asked.adapters else None)
    algorithms = {name.lower(): algorithm for name, algorithm in found.items()}
    for name in asked.methods:
        check_name("method", name, algorithms)
    for name, (chosen, model) in itertools.product(asked.methods, models):
        clients, start = chosen["clients"], time.perf_counter()
        inner = engine.Chunked(min(asked.clients_at_once, -(-clients // len(devices))), devices[:1])
        client_map = engine.Sharded(len(devices), inner, devices) if len(devices) > 1 else inner
        model = accepted(algorithms[name], model) or model
        compiled = programs.rounds(algorithms[name], model, client_map, clients)
        fitting, size = programs.fitting(*compiled, topology.chip)
        cost = costs.compile_program(engine.lower(fitting, *compiled[1:]), topology.chip)  # JAX has it compiled already
        cost = cost._replace(compile_seconds=time.perf_counter() - start)
        yield {
            "method": name,
            **chosen,
            "layout": str(fitting.layout.client_map),
            "MiB for a round": round(size / _MIB, 1),
            "exchanges": ", ".join(f"{n} {what}" for what, n in cost.collectives.items()) or "none",
            **_cells(cost),
        }


def _models(topology, asked):
    """Yields each combination of the options, and its network."""
    for name, dtype, clients in itertools.product(asked.networks, asked.dtypes, asked.clients):
        for lowering in ["auto"] if name in NOT_CONVOLUTIONAL else asked.lowerings:
            chosen = {"network": name, "dtype": dtype, "clients": clients, "lowering": lowering}
            options = dict(asked.option) | {"dtype": dtype}
            if name not in NOT_CONVOLUTIONAL:
                options["lowering"] = "auto" if lowering == _AS_ON_CPU else lowering
            target = Target() if lowering == _AS_ON_CPU else Target.of(topology.devices[0])
            shape = asked.image_size and (asked.image_size, asked.image_size, 3)
            model = programs.network(name, target, options, shape)
            yield chosen, dataclasses.replace(model, adapters=asked.adapters and LoRA(**asked.adapters))


def _cells(cost):
    return {
        "arguments MiB": round(cost.arguments / _MIB, 1),
        "temporaries MiB": round(cost.temporaries / _MIB, 1),
        "kernels": cost.kernels,
        "convolutions": cost.convolutions,
        "products": cost.products,
        "compile s": round(cost.compile_seconds, 1),
    }


def _option(text):
    name, is_given, value = text.partition("=")
    if not (name and is_given):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, literal(value)


def _arguments(text):
    if isinstance(values := literal(f"dict({text})"), str):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,...")
    return values


def _numbers(text):
    return [_number(word) for word in words(text)]
