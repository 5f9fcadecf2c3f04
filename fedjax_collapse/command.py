"""The command ``fedjax-collapse``, which runs the programs of ``experiments/`` wherever the package is installed.

    fedjax-collapse launch --config=quickstart        is        python experiments/launch.py --config=quickstart

In a clone the programs are next to this package; a wheel installs them as ``fedjax_collapse_programs/experiments``, so
that no package with a name as common as ``experiments`` is installed.
"""

import importlib
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType

from fedjax_collapse.core.records import UserError

PROGRAMS = {  # program: (module in ``experiments``, description)
    "launch": ("launch", "runs a study"),
    "new": ("commands.new_project", "writes a small project: a config, a method and its test, a network, a notebook"),
    "list": ("commands.list_names", "lists methods, networks, data, partitions, measurements, augmentations, configs"),
    "partition": ("commands.show_partition", "shows how a config's data are divided among its clients"),
    "report": ("commands.report", "writes the report of a study again, from its saved arrays"),
    "export": ("commands.export_weights", "writes the weights of a run for other libraries: safetensors, PyTorch"),
    "convert": ("commands.convert", "writes data, client by client, as a store on disk, from which rounds read"),
    "extract": ("commands.extract", "writes the features of a config's data by its network, for the source features"),
    "communication": ("commands.show_communication", "counts the numbers that clients and server exchange in a round"),
    "compile-for": ("commands.compile_for", "compiles a round for TPUs and GPUs, without the device"),
    "check": ("commands.check", "compares compiled rounds with uncompiled ones, on this machine"),
    "benchmark": ("commands.benchmark", "measures throughput, compared with other simulators, on this machine"),
    "manual": ("commands.manual", "prints all config keys and options, the page docs/configs.md"),
    "completion": ("commands.completion", "prints the completion of this command line for bash, zsh or tcsh"),
}
MOVED = {  # former program: where its numbers and figures are
    "hours": "docs/reproduction.md",
    "theory": "docs/analysis.md, made by experiments/notebooks/theory.ipynb",
    "rank-and-accuracy": "docs/results.md, made by experiments/notebooks/rank_and_accuracy.ipynb",
    "adapter-rank": "docs/rank_collapse.md, made by experiments/notebooks/adapters.ipynb",
    "scale": "docs/scale.md, made by fedjax_collapse.training.scale",
}
_PARENT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Runs the program named on the command line; returns the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: fedjax-collapse PROGRAM ...    (fedjax-collapse PROGRAM --help for details)\n")
        print("\n".join(f"  {program:18} {description}" for program, (_, description) in PROGRAMS.items()))
        return 0
    if name not in PROGRAMS:
        message = f"unknown program {name!r}: expected one of {', '.join(PROGRAMS)}"
        if name in MOVED:
            message = f"the program {name} is gone: its numbers and figures are in {MOVED[name]}"
        print(f"error: {message}", file=sys.stderr)
        return 2
    sys.argv = [f"fedjax-collapse {name}", *arguments]
    if name == "launch":  # run as a script, because it handles signals before it imports anything
        runpy.run_path(str(folder() / "launch.py"), run_name="__main__")
        return 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly in ``| head``
    startup = import_program("startup")
    startup.check_packages()
    if name == "check":
        startup.configure_devices()  # as in a study
    return import_program(PROGRAMS[name][0]).main(arguments)


def import_program(name: str) -> ModuleType:
    """Returns the module of this name in ``experiments``, which need not be on Python's path.

    Raises:
        UserError: if the process has imported another package called ``experiments``.
    """
    sys.path.insert(0, str(folder().parent))
    try:
        package = importlib.import_module("experiments")
    finally:
        sys.path.remove(str(folder().parent))
    if list(package.__path__) != [str(folder())]:
        raise UserError(
            f"the imported package experiments is {next(iter(package.__path__))}, expected {folder()}: rename it, "
            "or use fedjax_collapse before it is imported"
        )
    return importlib.import_module(f"experiments.{name}")


def folder() -> Path:
    """Returns the folder of the programs."""
    in_clone = _PARENT / "experiments"
    return in_clone if (in_clone / "launch.py").is_file() else _PARENT / "fedjax_collapse_programs" / "experiments"


if __name__ == "__main__":
    sys.exit(main())
