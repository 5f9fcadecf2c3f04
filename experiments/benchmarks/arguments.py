"""The command line of ``fedjax-collapse benchmark``: its options, checked, with one-line messages."""

import argparse
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from experiments.benchmarks import ON_GPU, SYSTEMS, WITH_METHODS, growth, network_steps
from experiments.benchmarks.environment import available_memory, gpus
from experiments.benchmarks.workloads import WORKLOADS
from experiments.commands.parser import Parser
from experiments.config.choices import OpenChoice

FIGURES = (".svg", ".png", ".pdf")
METHODS = sorted(  # by their files, as the parent process does not import JAX
    file.stem
    for file in Path(find_spec("fedjax_collapse").origin).with_name("methods").glob("[!_]*.py")
    if file.stem != "base"
)
MODES = ("methods", "augmentations", "storage", "adapters", "networks", "growth")  # measured instead of the workloads
_ONLY_FOR = {  # options that not every mode takes
    **dict.fromkeys(("figure", "profile", "turns", "variant"), ("workloads",)),
    "device": ("workloads", "methods", "adapters", "networks", "growth"),
    "scale": ("workloads", "methods", "augmentations", "storage"),
    "like": ("methods",),
}
_SCALE = (
    "for --workloads, --methods and --augmentations, in (0, 1]: uses this share of the examples; clients become fewer, "
    "and cohorts smaller, only where clients would have less than a batch each"
)
_LIKE = "for --methods: the workload whose data, clients, network and training are used; default: ten clients of cnn100"
_REPETITIONS = "comparisons of two systems, at least 3, among which the rounds are divided; default 5"
_SHAPE = '"NAME VARIABLE=VALUE ..."'
_VARIANT = "one more system: fedjax_collapse with these environment variables, such as XLA_FLAGS; repeatable"
_PROFILE = "folder for a jax.profiler trace of one more round of fedjax_collapse on each workload"
_LAYOUT = "of fedjax_collapse: devices x clients at once on each; default: a device for each core, clients by workload"


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    """Returns the checked arguments, with ``mode`` (of ``MODES``, or "workloads") and ``variants`` (variables by name).

    Wrong arguments end the program with a one-line message and exit status 2.
    """
    parser = command_line(description)
    arguments = parser.parse_args(argv)
    arguments.mode = next((mode for mode in MODES if getattr(arguments, mode)), "workloads")
    arguments.variants = dict(arguments.variant)
    for option, takes in _ONLY_FOR.items():
        if arguments.mode not in takes and getattr(arguments, option) != parser.get_default(option):
            parser.error(f"--{option} is for --{', --'.join(takes)} only; leave it out with --{arguments.mode}")
    if len(arguments.variants) < len(arguments.variant):
        parser.error("--variant: two have the same name; choose different names")
    if arguments.device == "gpu":
        _check_gpu(parser, arguments.systems)
    if arguments.mode == "workloads":
        _check_methods(parser, arguments.workloads, arguments.systems)
        _check_memory(parser, arguments.workloads, arguments.scale)
    return arguments


def command_line(description: str) -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(description, prog="fedjax-collapse benchmark")
    parser.add_argument("--workloads", default=["mlp100", "cnn100"], **_list_of(WORKLOADS, "of"))
    parser.add_argument("--systems", default=["fedjax_collapse", "pytorch"], **_list_of(SYSTEMS, "of"))
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--methods", **_all_or_some(METHODS, "the cost over federated averaging of"))
    parser.add_argument("--like", choices=list(WORKLOADS), help=_LIKE)
    modes.add_argument("--augmentations", action="store_true", help="the cost of each augmentation over none")
    modes.add_argument("--storage", action="store_true", help="rounds from a store on disk over rounds from memory")
    modes.add_argument("--adapters", action="store_true", help="rounds of all weights over rounds of adapters alone")
    modes.add_argument("--networks", **_all_or_some(network_steps.NETWORKS, "local steps of"))
    rounds = "rounds of 10 to 1,000 clients with the networks of"
    modes.add_argument("--growth", **_all_or_some(growth.WORKLOADS, rounds))
    parser.add_argument("--lowerings", default=["auto"], **_list_of(network_steps.LOWERINGS, "of the networks:"))
    rounds = "timed rounds of each system, at least 5; default: by workload"
    parser.add_argument("--rounds", type=at_least(5, "a number of rounds"), help=rounds)
    repetitions = at_least(3, "a number of repetitions")
    parser.add_argument("--repetitions", type=repetitions, default=5, help=_REPETITIONS)
    parser.add_argument("--turns", action="store_true", help="run systems alternately, with all cores")
    parser.add_argument("--variant", type=_variant, action="append", default=[], metavar=_SHAPE, help=_VARIANT)
    parser.add_argument("--scale", type=share, default=1.0, help=_SCALE)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help=f"gpu: only {', '.join(ON_GPU)}")
    parser.add_argument("--layout", type=_layout, metavar="2x1", help=_LAYOUT)
    parser.add_argument("--json", type=writable, metavar="FILE", help="where to write all numbers")
    parser.add_argument("--figure", type=_figure, metavar="FILE.svg", help="where to draw samples per second")
    parser.add_argument("--profile", type=_folder, metavar="DIR", help=_PROFILE)
    return parser


def _check_gpu(parser, systems):
    others = [system for system in systems if system not in ON_GPU]
    if others:
        parser.error(f"--device=gpu: {', '.join(others)} runs on CPUs only; expected --systems of {', '.join(ON_GPU)}")
    if not gpus():
        parser.error("--device=gpu: nvidia-smi finds no GPU; leave the option out, or run on a machine with a GPU")


def _check_methods(parser, workloads, systems):
    needing = [name for name in workloads if WORKLOADS[name].method != "fedavg"]
    without = [name for name in systems if name not in WITH_METHODS]
    if needing and without:
        parser.error(
            f"{needing[0]}: {', '.join(without)} only average; expected --systems of {', '.join(WITH_METHODS)}"
        )


def _check_memory(parser, workloads, scale):
    available = available_memory()
    for name in workloads:
        needed = WORKLOADS[name].scaled(scale).bytes_needed
        if available is not None and needed > available:
            parser.error(
                f"{name}: its data need {needed / 1e9:.2g} GB of memory and {available / 1e9:.2g} GB are available; "
                f"make it smaller with --scale"
            )


def _list_of(valid, help):
    return dict(type=_names(valid), **OpenChoice(valid, "").argument(help))


def _all_or_some(valid, help):
    return dict(nargs="?", const=list(valid), **_list_of(valid, help))


def _names(valid) -> Callable[[str], list[str]]:
    def parse_names(text):
        names = list(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in names if name not in valid]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; valid: {', '.join(valid)}")
        return names

    return parse_names


def at_least(least: int, what: str) -> Callable[[str], int]:
    """Returns a parser of integers that are at least this large; ``what`` names them in its error message."""

    def parse_number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} >= {least}")
        return int(text)

    return parse_number


def _variant(text):
    """Parses a variant: its name and environment variables."""
    try:
        name, *settings = shlex.split(text)
    except ValueError:  # an unclosed quotation, or an empty text
        name, settings = "", []
    if not settings or name in SYSTEMS or not all("=" in setting for setting in settings):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_SHAPE} with a name that no system has")
    return name, dict(setting.split("=", 1) for setting in settings)


def share(text: str) -> float:
    """Parses a number above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in (0, 1]")
    return value


def _layout(text):
    numbers = text.split("x")
    if len(numbers) != 2 or not all(n.isdecimal() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected devices x clients, such as 2x1")
    return tuple(map(int, numbers))


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


def _figure(text):
    if Path(text).suffix not in FIGURES:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a file that ends in {', '.join(FIGURES)}")
    return writable(text)


def _folder(text):
    """Creates the folder and returns its absolute path."""
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot create the folder {text}: {error.strerror}") from None
    return path
