"""The first steps of a command, before the imports that take seconds: checks of the environment, and Ctrl-C."""

import contextlib
import importlib.util
import io
import os
import signal
import sys
import warnings
from types import FrameType

from experiments.machine import num_cores

STOPPED = 75  # the exit status after a signal: the same command continues
STOPPING = "stopping after a few more seconds of training and a checkpoint; once more: at once"
STOPPED_EARLY = "stopped before the first round; the same command starts again"
_DEFAULT_FORMAT = warnings.formatwarning
_NEEDED = ("jax", "flax", "optax", "chex", "ml_collections", "matplotlib")  # from requirements.txt


def check_packages() -> None:
    """Ends the process with a one-line message if packages are missing, mostly because no venv is active.

    From then on, text that standard output cannot encode, as in an ASCII locale, is written as escapes, and a warning
    about data or a config is one line without the place in the code.
    """
    warnings.formatwarning = _format_warning
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        where = "use the Python that this package is installed in: .venv/bin/python, or . .venv/bin/activate first"
        end(2, f"error: {sys.executable} has no {', '.join(missing)}; {where}; to install it: pip install -e .")


def import_jax() -> None:
    """Imports JAX; until other handlers are installed, signals end the process with a one-line message."""
    check_packages()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        import jax  # noqa: F401
    except Exception as error:  # invalid environment variables, which JAX reads on import
        end(2, f"error: JAX cannot start: {' '.join(str(error).split())}; check the variables JAX_* and XLA_*")
    configure_devices()


def configure_devices() -> None:
    """Makes one CPU device per core, since one client rarely uses several; called before the devices start."""
    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", num_cores())


def print_line(line: str) -> None:
    """Prints a line to standard error from a handler of signals, on a terminal below the ``^C`` that it shows."""
    line = "\n" * os.isatty(2) + line
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, RuntimeError):  # the signal has interrupted another line
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode())


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    if category is UserWarning:
        return f"warning: {message}\n"
    return _DEFAULT_FORMAT(message, category, filename, lineno, line)


def _stop(number: int, frame: FrameType | None) -> None:
    end(STOPPED, STOPPED_EARLY)


def end(status: int, line: str) -> None:
    """Ends the process at once: nothing has been written yet, and an import cannot be unwound silently."""
    print_line(line)
    os._exit(status)
