"""The only code that uses JAX's internals, and guards against bugs of its compiler.

JAX's internals may change without notice. A guard names the versions that need it.
"""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import jax
import jaxlib

_FIRST, _LAST = "0.10.2", "0.12.0.1"  # versions of jaxlib that compile some programs wrongly for CPUs with YNNPACK
_WITHOUT_YNNPACK = "--xla_cpu_experimental_ynn_fusion_type="  # a library to which XLA delegates reductions
_unguarded: list[str] = []  # flags that this process needs but that could not be set in time


def is_traced(value: Any) -> bool:
    """Returns whether the value is a tracer: an array inside a function that is being traced or transformed."""
    return isinstance(value, jax.core.Tracer)


def has_started_devices() -> bool:
    """Returns whether JAX has initialized its backends, after which XLA ignores changes of ``XLA_FLAGS``."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def guard(
    environ: MutableMapping[str, str] = os.environ,
    version: str = jaxlib.__version__,
    is_started: Callable[[], bool] = has_started_devices,
) -> None:
    """Adds the flag that this version of jaxlib needs to ``XLA_FLAGS``, unless the user has set it.

    XLA reads the variable when JAX starts its devices. Afterwards, the flag would have no effect and give programs a
    wrong key in JAX's compilation cache, so it is not added; ``warn_unguarded`` warns.
    """
    given = environ.get("XLA_FLAGS", "").strip()
    if not given.startswith("-"):  # the name of a file of flags; XLA ignores one that is missing
        name, given = given, ""
        with contextlib.suppress(OSError):
            given = Path(name).read_text().strip()
    is_given = re.search(rf"{_WITHOUT_YNNPACK.removesuffix('=')}(=|\s|$)", given)
    if is_given or not _numbers(_FIRST) <= _numbers(version) <= _numbers(_LAST):
        return
    if is_started():
        _unguarded[:] = [_WITHOUT_YNNPACK]
    else:
        environ["XLA_FLAGS"] = f"{given} {_WITHOUT_YNNPACK}".strip()


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:4]]


def warn_unguarded(platform: str) -> None:
    """Warns once if JAX started without a flag that compiling for this platform needs."""
    if _unguarded and platform == "cpu":
        warnings.warn(
            f"jaxlib {jaxlib.__version__} is known to compute some programs wrongly on CPUs and has started without "
            f"the flag against it: import fedjax_collapse before anything uses a device, or set "
            f"XLA_FLAGS={_unguarded.pop()} (docs/troubleshooting.md)",
            stacklevel=2,
        )


def wait_for_all_processes(barrier: str, seconds: int) -> None:
    """Blocks until every process has called it with the same name.

    Args:
        barrier: the name.
        seconds: the timeout.

    Raises:
        RuntimeError: a process has not called it in time.
    """
    from jax._src import distributed

    distributed.global_state.client.wait_at_barrier(barrier, seconds * 1000)


@contextlib.contextmanager
def as_single_process() -> Iterator[None]:
    """Makes ``jax.process_count()`` return 1 in its body.

    Orbax (0.12.8) otherwise sends the folder's name to all processes in every save, regardless of its
    ``MultiprocessingOptions.active_processes``, and rejects arrays that are on devices of one process only.
    """
    count = jax.process_count
    jax.process_count = lambda: 1
    try:
        yield
    finally:
        jax.process_count = count


def bytes_accessed(compiled: jax.stages.Compiled) -> float:
    """Returns the bytes that a program reads and writes by XLA's cost analysis, or NaN if the analysis has no value.

    The analysis counts the body of a loop once. For devices that are not present, it is the CPU's.
    """
    from jax._src.lib import _jax

    (module,) = compiled.runtime_executable().hlo_modules()
    return _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module).get("bytes accessed", float("nan"))
