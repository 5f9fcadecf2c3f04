"""Checks that this machine compiles rounds correctly: fedjax-collapse check

Compares compiled rounds, for every kind of layer, with the debug layout, which runs operation by operation, and runs
programs that some compilers are known to miscompile. It uses the devices, versions and ``XLA_FLAGS`` that a study
started in the same way would use, and two processes. It prints a row per case and a verdict, which ``provenance.json``
of later studies contains until devices, versions or flags change.
Exit status: 0 if all is correct, 1 if something is not, 2 for wrong input.
"""

import os
import sys
import time
from collections.abc import Sequence

import jaxlib

from experiments.devices import check_devices, configure_jax
from experiments.parser import Parser, reports_errors
from experiments.study import self_test
from experiments.waiting import wait
from fedjax_collapse.engine import available_devices


@reports_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    command_line().parse_args(argv)
    start = time.perf_counter()
    try:
        configure_jax(cache="")
        check_devices()
        outcomes = []
        with wait("comparing compiled with uncompiled rounds") as advance:
            for outcome in self_test.run():
                verdict = "right" if outcome.is_right else "WRONG"
                print(f"{outcome.name:60} {outcome.difference:8.1e}  {verdict}", flush=True)
                outcomes.append(outcome)
                advance()
    except KeyboardInterrupt:
        print("stopped before the verdict; the previous one is kept", file=sys.stderr)
        return 130
    wrong = [outcome.name for outcome in outcomes if not outcome.is_right]
    devices = available_devices()
    print(
        f"{len(outcomes) - len(wrong)} of {len(outcomes)} right in {time.perf_counter() - start:.0f} s: jaxlib "
        f"{jaxlib.__version__}, {len(devices)} x {devices[0].device_kind}, XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}"
    )
    if wrong:
        print(f"error: compiled wrongly: {'; '.join(wrong)}; see docs/troubleshooting.md", file=sys.stderr)
    return 1 if wrong else 0


def command_line() -> Parser:
    """Returns the parser of the command line."""
    return Parser(__doc__)
