"""The command line of ``fedjax-collapse benchmark``: flags, and what is wrong with them in one line."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from experiments.benchmarks import ON_GPU, SYSTEMS, growth, network_steps
from experiments.benchmarks.environment import available_memory, gpus
from experiments.benchmarks.workloads import WORKLOADS

FIGURES = (".svg", ".png", ".pdf")
_SCALE = (
    "of the workloads, --methods and --augmentations, in (0, 1]: keeps this share of the examples; clients, and the "
    "cohort with them, become fewer only where they would be left with less than a batch each"
)
_REPETITIONS = "comparisons of two systems, at least 3, among which the rounds are divided; default 5"
_SHAPE = '"NAME VARIABLE=VALUE ..."'
_VARIANT = "one more system: fedjax_collapse with these environment variables, such as XLA_FLAGS; repeatable"
_PROFILE = "folder for a jax.profiler trace of one more round of fedjax_collapse, of each workload"


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    """The arguments, all checked; wrong ones end the program with one line and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.error = _one_line
    names = ", ".join(WORKLOADS)
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=["mlp100", "cnn100"], help=f"of {names}")
    systems = ["fedjax_collapse", "pytorch"]
    parser.add_argument("--systems", type=_names(SYSTEMS), default=systems, help=f"of {', '.join(SYSTEMS)}")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--methods", action="store_true", help="what each method costs over federated averaging")
    modes.add_argument("--augmentations", action="store_true", help="what each augmentation costs over none")
    modes.add_argument("--networks", **_list_of(network_steps.NETWORKS, "steps of"))
    modes.add_argument("--growth", **_list_of(growth.WORKLOADS, "rounds of ever more clients, with the networks of"))
    lowerings = f"of the networks: {', '.join(network_steps.LOWERINGS)}"
    parser.add_argument("--lowerings", type=_names(network_steps.LOWERINGS), default=["auto"], help=lowerings)
    parser.add_argument("--rounds", type=_rounds, help="timed rounds of each system, at least 5; default: by workload")
    parser.add_argument("--repetitions", type=_repetitions, default=5, help=_REPETITIONS)
    parser.add_argument("--turns", action="store_true", help="one system after another, with all cores")
    parser.add_argument("--variant", type=_variant, action="append", default=[], metavar=_SHAPE, help=_VARIANT)
    parser.add_argument("--scale", type=_share, default=1.0, help=_SCALE)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help=f"gpu: of {', '.join(ON_GPU)} alone")
    layout = "of fedjax_collapse: devices x clients at once on each; default: as many devices as cores, by workload"
    parser.add_argument("--layout", type=_layout, metavar="2x1", help=layout)
    parser.add_argument("--json", type=writable, metavar="FILE", help="where to write all numbers")
    parser.add_argument("--figure", type=_figure, metavar="FILE.svg", help="where to draw samples per second")
    parser.add_argument("--profile", type=_folder, metavar="DIR", help=_PROFILE)
    arguments = parser.parse_args(argv)
    arguments.variants = dict(arguments.variant)
    _check(arguments)
    return arguments


def _check(arguments):
    mode = next((mode for mode in ("methods", "augmentations", "networks", "growth") if getattr(arguments, mode)), None)
    if mode and (arguments.figure or arguments.profile):
        _one_line(f"--figure and --profile are of workloads, leave them out with --{mode}")
    if mode in ("networks", "growth") and arguments.scale != 1:
        _one_line(f"--scale is of workloads, --methods and --augmentations, leave it out with --{mode}")
    if mode and (arguments.turns or arguments.variants):
        _one_line(f"--turns and --variant are of workloads, leave them out with --{mode}")
    if len(arguments.variants) < len(arguments.variant):
        _one_line("--variant: two have the same name")
    if arguments.device == "gpu":
        _check_on_gpu(arguments, mode)
    available = available_memory()
    for name in [] if mode else arguments.workloads:
        needed = WORKLOADS[name].scaled(arguments.scale).bytes_needed
        if available is not None and needed > available:
            _one_line(
                f"{name}: its data need {needed / 1e9:.2g} GB of memory and {available / 1e9:.2g} GB are available; "
                f"make it smaller with --scale"
            )


def _check_on_gpu(arguments, mode):
    if mode:
        _one_line(f"--device=gpu is of workloads, leave it out with --{mode}")
    others = [system for system in arguments.systems if system not in ON_GPU]
    if others:
        _one_line(f"--device=gpu: {', '.join(others)} runs on CPUs only; expected --systems of {', '.join(ON_GPU)}")
    if not gpus():
        _one_line("--device=gpu: nvidia-smi finds no GPU here; leave it out, or run this where there is one")


def _one_line(message) -> NoReturn:
    print(f"benchmark.py: {message}", file=sys.stderr)
    sys.exit(2)


def _list_of(valid, help):
    return dict(type=_names(valid), nargs="?", const=list(valid), help=f"{help} {', '.join(valid)}")


def _names(valid) -> Callable[[str], list[str]]:
    def parse_names(text):
        names = list(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in names if name not in valid]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(map(repr, unknown))}; valid: {', '.join(valid)}")
        return names

    return parse_names


def _rounds(text):
    if not text.isdecimal() or int(text) < 5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds >= 5")
    return int(text)


def _repetitions(text):
    if not text.isdecimal() or int(text) < 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of repetitions >= 3")
    return int(text)


def _variant(text):
    """Its name, and its variables."""
    try:
        name, *settings = shlex.split(text)
    except ValueError:  # a quotation without an end, or nothing at all
        name, settings = "", []
    if not settings or name in SYSTEMS or not all("=" in setting for setting in settings):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_SHAPE}, of another name than the systems'")
    return name, dict(setting.split("=", 1) for setting in settings)


def _share(text):
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in (0, 1]")
    return share


def _layout(text):
    numbers = text.split("x")
    if len(numbers) != 2 or not all(n.isdecimal() and int(n) for n in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected devices x clients, such as 2x1")
    return tuple(map(int, numbers))


def writable(text):
    """The path, if a file can be written there; leaves nothing behind."""
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
    """The absolute path of the folder, which is there then."""
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make the folder {text}: {error.strerror}") from None
    return path
