"""The fastest layout of a network, a cohort and a machine: timed once, then remembered."""

import dataclasses
import time
from collections.abc import Iterator

import jax
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import processes
from fedjax_collapse.engine import Chunked, ClientMap, Sharded
from fedjax_collapse.nn.model import Model
from fedjax_collapse.simulation.simulation import Hardware, Run, Schedule, check, initialize
from fedjax_collapse.storage.timing_cache import remembered

_CLIENTS_AT_ONCE = (1, 2, 5, 10, 25, 50, 100)
_TIMED_ROUNDS = 2  # after one that compiles; the faster counts


def fastest(run: Run, model: Model, schedule: Schedule, client_map: ClientMap) -> ClientMap:
    """The client map on the devices of ``client_map`` with the number of clients at once whose rounds are fastest.

    Timed by rounds that are thrown away. The seconds of each are kept in the cache folder, where an equal device,
    network, algorithm, cohort and sizes of clients find them again.
    """
    cohort_size = schedule.rule.cohort_size(run.federation.num_clients)

    def measure():
        seconds = {}
        for candidate in _candidates(client_map, cohort_size):
            once = str(candidate.clients_at_once // candidate.num_devices)
            seconds[once] = _seconds(run, model, schedule._replace(rounds=1), candidate)
            if seconds[once] > 2 * min(seconds.values()):  # still more clients at once would be still slower
                break
        return seconds

    program = model, jax.tree.map(lambda leaf: 0, run.algorithm), float(run.algorithm.training.epochs)
    sizes = np.sort(np.asarray(run.federation.ownership.sizes)).tolist()
    key = *program, client_map.num_devices, cohort_size, sizes
    seconds = remembered("layouts", client_map.devices[0], key, measure)
    return _with_clients_at_once(client_map, int(min(seconds, key=seconds.get)))


def _candidates(client_map, cohort_size) -> Iterator[ClientMap]:
    for once in _CLIENTS_AT_ONCE:
        if once == 1 or once * client_map.num_devices <= cohort_size:
            yield _with_clients_at_once(client_map, once)


def _with_clients_at_once(client_map, once):
    if isinstance(client_map, Sharded):
        return dataclasses.replace(client_map, inner=Chunked(once))
    return Chunked(once, client_map.on)


def _seconds(run, model, schedule, client_map):
    """Of one round."""
    rounds = check(run, model, schedule, Hardware(client_map))
    program = engine.Program(rounds, [initialize(run, model, schedule)], run.federation.train)
    program.prepare()
    program.advance(1)
    taken = []
    for _ in range(_TIMED_ROUNDS):
        start = time.perf_counter()
        program.advance(1)
        taken.append(time.perf_counter() - start)
    return processes.all_gather(min(taken))[0]
