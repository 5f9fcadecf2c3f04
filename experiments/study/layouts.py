"""The fastest layout of a network, a cohort and a machine, timed once and cached."""

import dataclasses
import time

import jax
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import processes
from fedjax_collapse.engine import Chunked, ClientMap, Sharded
from fedjax_collapse.engine.timing_cache import cached_numbers
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.simulation import Hardware, Run, Schedule, initialize, prepare

_CLIENTS_AT_ONCE = (1, 2, 5, 10, 25, 50, 100)
_TIMED_ROUNDS = 2  # after the one that compiles; the faster one counts


def fastest(run: Run, model: Model, schedule: Schedule, client_map: ClientMap) -> ClientMap:
    """Returns the client map on the devices of ``client_map`` whose number of clients at once makes rounds fastest.

    The timed rounds are discarded. Their seconds are stored in the cache folder, where they are found again for an
    equal device, network, algorithm, cohort and sizes of clients.
    """
    cohort_size = schedule.rule.cohort_size(run.federation.num_clients)

    def measure():
        seconds = {}
        for once in (n for n in _CLIENTS_AT_ONCE if n == 1 or n * client_map.num_devices <= cohort_size):
            candidate = _with_clients_at_once(client_map, once)
            seconds[str(once)] = _seconds(run, model, schedule._replace(rounds=1), candidate)
            if seconds[str(once)] > 2 * min(seconds.values()):  # more clients at once would be slower still
                break
        return seconds

    program = model, jax.tree.map(lambda leaf: 0, run.algorithm), float(run.algorithm.training.epochs)
    sizes = np.sort(np.asarray(run.federation.ownership.sizes)).tolist()
    key = *program, client_map.num_devices, cohort_size, sizes
    seconds = cached_numbers("layouts", client_map.devices[0], key, measure)
    return _with_clients_at_once(client_map, int(min(seconds, key=seconds.get)))


def _with_clients_at_once(client_map, once):
    if isinstance(client_map, Sharded):
        return dataclasses.replace(client_map, inner=Chunked(once))
    return Chunked(once, client_map.on)


def _seconds(run, model, schedule, client_map):
    """Returns the seconds of one round."""
    rounds = prepare(run, model, schedule, Hardware(client_map))
    program = engine.Program(rounds, [initialize(run, model, schedule)], run.federation.train)
    program.prepare()
    program.advance(1)
    taken = []
    for _ in range(_TIMED_ROUNDS):
        start = time.perf_counter()
        program.advance(1)
        taken.append(time.perf_counter() - start)
    return processes.all_gather(min(taken))[0]
