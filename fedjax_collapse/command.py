"""The command ``fedjax-collapse``: the programs of ``experiments/``, from wherever the package is installed.

    fedjax-collapse launch --config=quickstart        is        python experiments/launch.py --config=quickstart

In a clone they are beside this package; a wheel brings them as ``fedjax_collapse_programs/experiments``, so that no
package of a name as common as theirs is installed for everyone.
"""

import runpy
import sys
from pathlib import Path

PROGRAMS = {
    "launch": "runs a study",
    "partition": "shows how a config's data are divided among its clients, without training",
    "report": "makes the report of a study again, from its saved arrays",
    "communication": "counts what clients and server exchange in a round, without training",
    "compile-for": "what the compilers of TPUs and GPUs make of a round, without the device",
    "theory": "the theory of collapse: deep linear networks, as figures and numbers",
    "check": "compares compiled rounds with uncompiled ones, on this machine",
    "benchmark": "throughput beside other simulators, on this machine",
}
_BESIDE = Path(__file__).resolve().parents[1]


def main() -> int:
    """Runs the program that the command line names, as if its file had been started; else the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: fedjax-collapse PROGRAM ...    (fedjax-collapse PROGRAM --help says more)\n")
        print("\n".join(f"  {program:13} {what}" for program, what in PROGRAMS.items()))
        return 0
    if name not in PROGRAMS:
        print(f"error: unknown program {name!r}: expected one of {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    file = folder() / f"{name.replace('-', '_')}.py"
    sys.argv = [str(file), *arguments]
    runpy.run_path(str(file), run_name="__main__")
    return 0


def folder() -> Path:
    """Where the programs are."""
    in_clone = _BESIDE / "experiments"
    return in_clone if (in_clone / "launch.py").is_file() else _BESIDE / "fedjax_collapse_programs" / "experiments"


if __name__ == "__main__":
    sys.exit(main())
