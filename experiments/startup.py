"""What a command does before anything else is imported, which takes seconds: wrong environments and Ctrl-C in words."""

import importlib.util
import io
import os
import signal
import sys
from types import FrameType

from experiments.study.machine import num_cores

STOPPED = 75  # the exit status of a process that a signal stopped: the same command continues
STOPPING = "stopping after a few more seconds of training and a checkpoint; once more: at once"
STOPPED_EARLY = "stopped before the first round; the same command starts again"
_NEEDED = ("jax", "flax", "optax", "chex", "ml_collections", "matplotlib")  # of requirements.txt


def check_packages() -> None:
    """Ends the process with one line where this Python lacks what the package needs: mostly one outside of its venv.

    Text that standard output cannot encode, as in a locale of ASCII, is written as its escape from here on.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        where = "use the Python that this package is installed in: .venv/bin/python, or . .venv/bin/activate first"
        _end(2, f"error: {sys.executable} has no {', '.join(missing)}; {where}; to install it: pip install -e .")


def import_jax() -> None:
    """Imports JAX; signals until then, and until somebody else handles them, end the process with one line."""
    check_packages()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        import jax  # noqa: F401
    except Exception as error:  # of its own environment variables, which it reads at once
        _end(2, f"error: JAX cannot start: {' '.join(str(error).split())}; look at the variables JAX_* and XLA_*")
    configure_devices()


def configure_devices() -> None:
    """One CPU device per core, as one client rarely keeps several busy; before anything of a config starts them."""
    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", num_cores())


def _stop(number: int, frame: FrameType | None) -> None:
    _end(STOPPED, STOPPED_EARLY)


def _end(status: int, line: str) -> None:
    """At once: nothing has been written, and an import cannot be unwound quietly."""
    os.write(sys.__stderr__.fileno(), f"{line}\n".encode())
    os._exit(status)
