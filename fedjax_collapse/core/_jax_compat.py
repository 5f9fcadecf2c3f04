"""Everything that relies on JAX's internals, which a new version may change without notice; import it only here."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


def is_traced(value: Any) -> bool:
    """Whether the value is a tracer: an array inside a function that is being traced or transformed."""
    return isinstance(value, jax.core.Tracer)


def has_started_devices() -> bool:
    """Whether JAX has initialized its backends; XLA ignores later changes of ``XLA_FLAGS``."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def wait_for_all_processes(barrier: str, seconds: int) -> None:
    """Blocks until every process has called it with the same name.

    Raises:
        RuntimeError: a process has not called it within so many seconds.
    """
    from jax._src import distributed

    distributed.global_state.client.wait_at_barrier(barrier, seconds * 1000)


@contextlib.contextmanager
def as_single_process() -> Iterator[None]:
    """Makes ``jax.process_count()`` 1 inside.

    Orbax otherwise waits for all processes in every call, whatever its ``active_processes``.
    """
    count = jax.process_count
    jax.process_count = lambda: 1
    try:
        yield
    finally:
        jax.process_count = count


def bytes_accessed(compiled: jax.stages.Compiled) -> float:
    """Bytes that a program reads and writes, by XLA's cost analysis, which counts the body of a loop once; NaN where it
    does not say. It is the analysis of a CPU, also for programs of devices that are not there."""
    from jax._src.lib import _jax

    (module,) = compiled.runtime_executable().hlo_modules()
    return _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module).get("bytes accessed", float("nan"))
