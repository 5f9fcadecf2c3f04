"""What processes of the tests run in place of programs: each is imported by its name, without JAX."""

import sys
import time


def serve_one(connection):
    """Serves rounds of half a second."""
    connection.send(0)
    while (order := connection.recv()) is not None:
        for message in [(0.5, 1.0)] * order + [None]:
            connection.send(message)
        connection.recv()
    connection.send(dict(samples=1, processed=1, steps=1, loss=1.0, layout=sys.path[0], peak_memory_mib=1.0))


def prepare_nothing(connection, workload, rounds, file):
    connection.send(None)


def compile_slowly(connection, workload, setting):
    """Compiles ``auto`` at once, and other lowerings never."""
    time.sleep(0 if ("lowering", "auto") in setting.options else 1000)
    connection.send(None)


def serve_auto(connection, system, workload, setting, rounds):
    """Serves rounds of PyTorch; our engine fails."""
    serve_one(connection) if system == "pytorch" else sys.exit(f"{system} is broken")
