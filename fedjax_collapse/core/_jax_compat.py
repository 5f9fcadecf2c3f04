"""Everything that relies on JAX's internals, which may change without notice; other modules must not import them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


def is_traced(value: Any) -> bool:
    """Returns whether the value is a tracer: an array inside a function that is being traced or transformed."""
    return isinstance(value, jax.core.Tracer)


def has_started_devices() -> bool:
    """Returns whether JAX has initialized its backends, after which XLA ignores changes of ``XLA_FLAGS``."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


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

    Orbax otherwise waits for all processes in every call, regardless of its ``active_processes``.
    """
    count = jax.process_count
    jax.process_count = lambda: 1
    try:
        yield
    finally:
        jax.process_count = count


def bytes_accessed(compiled: jax.stages.Compiled) -> float:
    """Returns the bytes that a program reads and writes by XLA's cost analysis, or NaN if the analysis has no value.

    The analysis counts the body of a loop once. It is the CPU's, also for programs of devices that are not present.
    """
    from jax._src.lib import _jax

    (module,) = compiled.runtime_executable().hlo_modules()
    return _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module).get("bytes accessed", float("nan"))
