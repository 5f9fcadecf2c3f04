"""Several processes, on one machine or on many, that run one study: how they connect, and how they end."""

import importlib.util
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TextIO

import jax

from experiments.startup import end
from fedjax_collapse.core import processes
from fedjax_collapse.core._jax_compat import wait_for_all_processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.user_code import one_line

_EXPECTED = "expected off, auto, or host:port,processes,process such as 10.0.0.1:1234,4,0 for the first of four"
_MARGIN = 60  # seconds by which JAX's timeout exceeds ours
_END_TIMEOUT = 10  # seconds that a process waits for the others to end as well
_LOST = "Gloo"  # in a CPU's error about a process that has ended; on other devices JAX ends the process


def join(where: str, timeout: int) -> None:
    """Makes this process one of several, before JAX starts.

    Args:
        where: the launcher's ``--distributed``.
        timeout: seconds to wait for the others.

    Raises:
        UserError: the text is invalid, the port is taken, or a process is missing.
    """
    given = _parse(where)
    if given is None and not (where == "auto" and _is_cluster()):
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    line = f"error: --distributed={where}: not all processes connected within {timeout} s; start them all"
    watch = threading.Timer(timeout, end, (2, line))  # before JAX would abort the process
    watch.start()
    try:
        jax.distributed.initialize(**(given or {}), initialization_timeout=timeout + _MARGIN)
        _check_devices()
        processes.connect()
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--distributed={where}: {one_line(error)}") from error
    finally:
        watch.cancel()


def until_all_end(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Returns the exit status of ``main`` once all processes have ended; does not wait long if only this one fails.

    The other processes notice that it has ended, on a CPU at once, elsewhere in two minutes, and end too.
    """
    try:
        status = main(arguments)
    except (Exception, KeyboardInterrupt) as error:
        if not jax.distributed.is_initialized():
            raise
        if _LOST in str(error):
            print("error: another process has ended; see its output", file=sys.stderr)
        else:
            traceback.print_exc()
        status = 1
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            wait_for_all_processes("end", _END_TIMEOUT)
        except RuntimeError:
            os._exit(status)  # otherwise JAX would wait for the others, then abort
        jax.distributed.shutdown()
    return status


def stream() -> TextIO | None:
    """Returns the console's stream: standard output in the first process (None), nowhere in the others."""
    return None if processes.is_first() else open(os.devnull, "w")


def _parse(where):
    """Returns the arguments of ``jax.distributed.initialize``; None for off and auto."""
    if where in ("off", "auto"):
        return None
    match = re.fullmatch(r"([^,\s]+):(\d+),(\d+),(\d+)", where)
    if not match:
        raise UserError(f"--distributed={where}: {_EXPECTED}")
    host, (port, count, process) = match[1], map(int, match.groups()[1:])
    if not 0 <= process < count:
        raise UserError(f"--distributed={where}: there is no process {process} of {count}; they count from 0")
    if not 0 < port < 2**16:
        raise UserError(f"--distributed={where}: there is no port {port}; choose one from 1024 to 65535")
    if process == 0:
        _check_port(where, port)
    return dict(
        coordinator_address=f"{host}:{port}", num_processes=count, process_id=process,
        cluster_detection_method="deactivate",
    )  # fmt: skip


def _check_port(where, port):
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection may have just ended
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(f"--distributed={where}: port {port}: {error.strerror}; choose another one") from error


def _is_cluster():
    """Returns whether this is one of several tasks of Slurm or Open MPI, or a TPU host, which can find the others."""
    environment = os.environ
    slurm = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
    return (
        ("SLURM_STEP_NODELIST" in environment and int(slurm) > 1)
        or int(environment.get("OMPI_COMM_WORLD_SIZE", "1")) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in environment
        or "TPU_WORKER_HOSTNAMES" in environment
        or (importlib.util.find_spec("libtpu") and any(map(os.path.exists, ("/dev/accel0", "/dev/vfio/0"))))
    )


def _check_devices():
    """Raises ValueError if the processes have different numbers of devices."""
    counts = [0] * jax.process_count()
    for device in jax.devices():
        counts[device.process_index] += 1
    if len(set(counts)) > 1:
        raise ValueError(
            f"the processes have {', '.join(map(str, counts))} devices, expected as many each: choose them by "
            "CUDA_VISIBLE_DEVICES, on CPUs by JAX_NUM_CPU_DEVICES"
        )
