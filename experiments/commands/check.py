"""Checks that rounds are compiled rightly on this machine: fedjax-collapse check

Compares compiled rounds, with every kind of layer and every method, with the debug layout, which runs them operation
by operation; and runs programs that compilers are known to have got wrong. It uses the devices, versions and
``XLA_FLAGS`` that a study started in the same way would use, and two and a half minutes of two cores. A row for each
case, then the verdict, which ``provenance.json`` has of all studies that are started here afterwards, until something
of that changes. Exit status: 0 all is right, 1 something is not, 2 wrong input.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

import jaxlib

from experiments import launch
from experiments.study import self_test
from fedjax_collapse.core.records import UserError
from fedjax_collapse.engine import available_devices


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = _wrong_input
    parser.parse_args(argv)
    start = time.perf_counter()
    try:
        launch.configure_jax(cache="")
        launch.check_devices()
        outcomes = [_shown(outcome) for outcome in self_test.run()]
    except UserError as error:
        _wrong_input(error)
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


def _shown(outcome):
    print(f"{outcome.name:60} {outcome.difference:8.1e}  {'right' if outcome.is_right else 'WRONG'}", flush=True)
    return outcome


def _wrong_input(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
