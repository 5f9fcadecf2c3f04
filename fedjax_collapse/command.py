"""The command ``fedjax-collapse``: the programs of ``experiments/``, from wherever the package is installed.

    fedjax-collapse launch --config=quickstart        is        python experiments/launch.py --config=quickstart

In a clone they are next to this package; a wheel brings them as ``fedjax_collapse_programs/experiments``, so that no
package of a name as common as theirs is installed for everyone.
"""

import importlib
import runpy
import signal
import sys
from pathlib import Path

PROGRAMS = {  # its module below ``experiments``, and what it does
    "launch": ("launch", "runs a study"),
    "partition": (
        "commands.show_partition",
        "shows how a config's data are divided among its clients",
    ),
    "report": ("commands.report", "makes the report of a study again, from its saved arrays"),
    "communication": ("commands.show_communication", "counts the numbers that clients and server exchange in a round"),
    "compile-for": ("commands.compile_for", "what the compilers of TPUs and GPUs make of a round, without the device"),
    "check": ("commands.check", "compares compiled rounds with uncompiled ones, on this machine"),
    "benchmark": ("commands.benchmark", "throughput compared with other simulators, on this machine"),
    "theory": ("research.theory", "the theory of collapse: deep linear networks, as figures and numbers"),
    "rank-and-accuracy": ("research.rank_and_accuracy", "whether arms that raise the rank raise the accuracy"),
    "manual": ("config.manual", "prints every config key and option, as docs/configs.md has them"),
}
_PARENT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Runs the program that the command line names; the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: fedjax-collapse PROGRAM ...    (fedjax-collapse PROGRAM --help says more)\n")
        print("\n".join(f"  {program:18} {what}" for program, (_, what) in PROGRAMS.items()))
        return 0
    if name not in PROGRAMS:
        print(f"error: unknown program {name!r}: expected one of {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    sys.argv = [f"fedjax-collapse {name}", *arguments]
    if name == "launch":  # as if its file had been started: it handles signals before it imports anything
        runpy.run_path(str(folder() / "launch.py"), run_name="__main__")
        return 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ``| head`` ends it quietly
    sys.path.insert(0, str(folder().parent))
    startup = importlib.import_module("experiments.startup")
    startup.check_packages()
    if name == "check":
        startup.configure_devices()  # those of a study
    return importlib.import_module(f"experiments.{PROGRAMS[name][0]}").main(arguments)


def folder() -> Path:
    """Where the programs are."""
    in_clone = _PARENT / "experiments"
    return in_clone if (in_clone / "launch.py").is_file() else _PARENT / "fedjax_collapse_programs" / "experiments"


if __name__ == "__main__":
    sys.exit(main())
