"""The command line of ``fedjax-collapse benchmark``: its options, checked, with one-line messages."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Annotated

from experiments.benchmarks import OURS, SYSTEMS
from experiments.benchmarks.suites import LOWERINGS, SUITES
from experiments.benchmarks.workloads import WORKLOADS
from experiments.machine import gpus
from experiments.parser import Parser, names_option, of_kind
from fedjax_collapse.schema.options import Count, Interval, Share

_DEFAULT_SYSTEMS = {  # by suite and device
    ("workloads", "cpu"): [OURS, "pytorch"],
    ("workloads", "gpu"): [OURS, "pytorch"],
    ("networks", "cpu"): ["pytorch", "pytorch-threads", OURS],
    ("networks", "gpu"): ["pytorch-graph", "pytorch-graph-bfloat16", "pytorch", OURS],
}
_SHAPE = '"NAME VARIABLE=VALUE ..."'


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    """Returns the checked arguments; ``only`` and ``systems`` are complete, ``variants`` are variables by name.

    Wrong arguments end the program with a one-line message and exit status 2.
    """
    parser = command_line(description)
    asked = parser.parse_args(argv)
    suite = SUITES[asked.suite]
    for option in sorted({option for other in SUITES.values() for option in other.options} - set(suite.options)):
        if getattr(asked, option) != parser.get_default(option):
            takes = [name for name, other in SUITES.items() if option in other.options]
            parser.error(f"--{option} is for --suite={', '.join(takes)} only; leave it out with --suite={asked.suite}")
    if unknown := [name for name in asked.only or () if name not in suite.names]:
        valid = ", ".join(suite.names) or "nothing"
        parser.error(f"--only: unknown {', '.join(map(repr, unknown))}; --suite={asked.suite} has {valid}")
    asked.only = asked.only or list(suite.default or suite.names)
    asked.variants = dict(asked.variant)
    if len(asked.variants) < len(asked.variant):
        parser.error("--variant: two have the same name; choose different names")
    asked.systems = asked.systems or _DEFAULT_SYSTEMS.get((asked.suite, asked.device), [OURS])
    _check_systems(parser, asked)
    return asked


def command_line(description: str) -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(description, prog="fedjax-collapse benchmark")
    add = parser.add_argument
    add("--suite", choices=list(SUITES), default="workloads", help="what is measured")
    every = dict.fromkeys(name for suite in SUITES.values() for name in suite.names)
    add("--only", type=words, **names_option(every, "of the suite's workloads, networks or methods:"))
    add("--systems", **_list_of(SYSTEMS, "of workloads and networks:"))
    add("--lowerings", default=["auto"], **_list_of(LOWERINGS, "of our networks:"))
    add("--dtypes", default=["float32"], **_list_of(("float32", "bfloat16"), "of our networks:"))
    add("--batch_size", type=of_kind(Count), default=32, help="of a step of networks")
    rounds = "timed rounds of each system, at least 5; default: by suite and workload"
    add("--rounds", type=of_kind(Annotated[int, Interval(5)]), help=rounds)
    repetitions = "comparisons of two systems, at least 3, among which the rounds are divided; default 5"
    add("--repetitions", type=of_kind(Annotated[int, Interval(3)]), default=5, help=repetitions)
    add("--turns", action="store_true", help="run systems alternately, with all cores")
    variant = "one more system: fedjax_collapse with these environment variables, such as XLA_FLAGS; repeatable"
    add("--variant", type=_variant, action="append", default=[], metavar=_SHAPE, help=variant)
    scale = "in (0, 1]: uses this share of the examples; clients and cohorts become smaller only where clients would "
    add("--scale", type=of_kind(Share), default=1.0, help=scale + "have less than a batch each")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="of all systems")
    layout = "of fedjax_collapse: devices x clients at once on each; default: a device for each core, or the library's"
    add("--layout", type=_layout, metavar="2x1", help=layout)
    seconds = "compiles first, then times networks one after another for so long in all; reports what was left out"
    add("--seconds", type=of_kind(Count), help=seconds)
    add("--json", type=writable, metavar="FILE", help="where to write all numbers")
    return parser


def _check_systems(parser, asked):
    if asked.device == "gpu" and not gpus():
        parser.error("--device=gpu: nvidia-smi finds no GPU; leave the option out, or run on a machine with a GPU")
    runs = [name for name, system in SYSTEMS.items() if asked.device in system.devices]
    if others := [name for name in asked.systems if name not in runs]:
        only = f"{', '.join(others)} runs on {'CPUs' if asked.device == 'gpu' else 'GPUs'} only"
        parser.error(f"--device={asked.device}: {only}; expected --systems of {', '.join(runs)}")
    needing = [name for name in asked.only if asked.suite == "workloads" and WORKLOADS[name].method != "fedavg"]
    having = [name for name, system in SYSTEMS.items() if system.has_methods]
    if needing and (without := [name for name in asked.systems if name not in having]):
        parser.error(f"{needing[0]}: {', '.join(without)} only average; expected --systems of {', '.join(having)}")


def words(text: str) -> list[str]:
    """Parses names with commas between them."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name))


def _list_of(valid, help):
    def parse_names(text):
        if unknown := [name for name in words(text) if name not in valid]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; valid: {', '.join(valid)}")
        return words(text)

    return dict(type=parse_names, **names_option(valid, help))


def _variant(text):
    """Parses a variant: its name and environment variables."""
    try:
        name, *settings = shlex.split(text)
    except ValueError:  # an unclosed quotation, or an empty text
        name, settings = "", []
    if not settings or name in SYSTEMS or not all("=" in setting for setting in settings):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_SHAPE} with a name that no system has")
    return name, dict(setting.split("=", 1) for setting in settings)


def _layout(text):
    if not re.fullmatch("[1-9][0-9]*x[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected devices x clients, such as 2x1")
    return tuple(map(int, text.split("x")))


def writable(text):
    """Returns the path if a file can be written there, without leaving one."""
    path = Path(text)
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from None
    if not existed:
        path.unlink()
    return path
