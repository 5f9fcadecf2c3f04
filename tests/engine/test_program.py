"""Where a run's examples and client states lie, what its rounds need, and what is done where that is too much."""

import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TRAINING, one_line

from experiments.study import groups
from fedjax_collapse import FedAvg, Model, Scaffold, engine, nn, simulate
from fedjax_collapse.engine import memory
from fedjax_collapse.run.simulation import Callbacks, Hardware, Run, Schedule, initialize, prepare, simulate_runs

pytestmark = pytest.mark.slow

SCAFFOLD = FedAvg(TRAINING, {"scaffold": Scaffold()})


def announced(federation, network, client_map, storage="auto", algorithm=None, participation=1.0):
    lines = []
    run = Run(federation, algorithm or FedAvg(TRAINING), jax.random.key(0))
    schedule = Schedule(1, participation)
    simulate_runs([run], network, schedule, Hardware(client_map, storage=storage), Callbacks(announce=lines.append))
    return lines[0]


def test_predicted_memory_is_that_of_the_compiled_program(federation, network):
    def predicted(clients_at_once, width=100):
        wide = Model(nn.MLP(4, hidden=(width,)), federation.input_shape)
        line = announced(federation, wide, engine.Chunked(clients_at_once))
        assert f"cohorts of 5, {clients_at_once} client" in line
        return float(re.search(r"on each device (\S+) MiB for a round in addition to", line)[1])

    assert predicted(5, width=600) > 2 * predicted(1, width=600) > 4 * predicted(1) > 0
    states = announced(federation, network, engine.Sharded(2, engine.Chunked(1)), algorithm=SCAFFOLD)
    assert "1 client at a time on each of 2 devices" in states


def test_memory_of_a_donated_argument_is_counted_once():
    values = jnp.ones(1000)
    kept, donated = (
        memory.program_bytes(jax.jit(jnp.negative, donate_argnums=arguments).lower(values).compile)
        for arguments in ((), 0)
    )
    assert kept - donated == values.nbytes


def test_the_layout_is_reduced_until_it_fits(federation, monkeypatch):
    wide = Model(nn.MLP(4, hidden=(600,)), federation.input_shape)
    run = Run(federation, FedAvg(TRAINING), jax.random.key(0))

    def needed(clients_at_once):
        rounds = prepare(run, wide, Schedule(1), Hardware(engine.Chunked(clients_at_once)))
        started = initialize(run, wide, Schedule(1))
        return memory.program_bytes(lambda: engine.compile_rounds(rounds, *started, federation.train, 1))

    monkeypatch.setattr(memory, "free_bytes", lambda devices: (needed(1) + needed(2)) / 2)
    for client_map in (engine.Chunked(4), engine.Vectorized()):
        assert "1 client at a time" in announced(federation, wide, client_map, "device")
    monkeypatch.setattr(memory, "free_bytes", lambda devices: needed(2))
    assert "2 clients at a time" in announced(federation, wide, engine.Chunked(5), "device")
    monkeypatch.setattr(memory, "free_bytes", lambda devices: 1000)
    with one_line(r"one client at a time needs .* GiB .* 0.00 GiB are free: choose a smaller"):
        announced(federation, wide, engine.Chunked(4), "device")


def test_what_does_not_fit_stays_on_the_host(federation, network, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda devices: 1000)
    assert "client states on the host" in announced(federation, network, engine.Chunked(1))
    with one_line("storage 'tape': expected one of auto, device, host, disk"):
        announced(federation, network, engine.Chunked(1), "tape")
    runs = [Run(federation, FedAvg(TRAINING), jax.random.key(i)) for i in range(2)]
    with one_line(r"engine\.runs=separate"):
        simulate_runs(runs, network, Schedule(1), Hardware(engine.Chunked(1), engine.Vectorized()))


def test_ten_thousand_clients(federation):
    """Cohorts of 20; a client outside them keeps its state, and the others are told apart."""
    rng = np.random.default_rng(0)
    many = federation.with_partition(rng.integers(0, 110, (10_000, 9)))
    small = Model(nn.MLP(4, hidden=(2,)), federation.input_shape)
    result = simulate(
        many, small, SCAFFOLD, rounds=2, participation=0.002, key=jax.random.key(0), storage="host",
        client_map=engine.Sharded(2, engine.Chunked(1)),
    )  # fmt: skip
    trained = result.clients["steps"] > 0
    assert trained.shape == (2, 10_000) and trained.sum(axis=1).tolist() == [20, 20]
    assert (np.isfinite(result.clients["task_loss"]) == trained).all()
    assert "20, 1 client" in announced(many, small, engine.Chunked(1), "host", SCAFFOLD, participation=0.002)


def test_the_fastest_layout_is_timed_once(federation, network, tmp_path, monkeypatch):
    """Up to where more clients at once take twice as long; another network is timed again, a damaged file too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    timed = []

    def seconds(run, model, schedule, client_map):
        timed.append(client_map.inner.clients_at_once)
        return {1: 3.0, 2: 1.0, 5: 2.5, 10: 0.1}[timed[-1]]

    monkeypatch.setattr(groups, "_seconds", seconds)
    parts = [np.arange(3 * i, 3 * i + 3) for i in range(30)]
    many = federation.with_partition(parts)
    start = engine.Sharded(2, engine.Chunked(1))

    def fastest(network):
        optimizer = jax.tree_util.Partial(optax.sgd, learning_rate=1.0)
        run = Run(many, FedAvg(TRAINING, server_optimizer=optimizer), jax.random.key(0))
        return groups.fastest(run, network, Schedule(3), start)

    assert fastest(network) == fastest(network) == engine.Sharded(2, engine.Chunked(2))
    assert timed == [1, 2, 5]
    fastest(Model(nn.MLP(4, hidden=(5,)), federation.input_shape))
    assert timed == [1, 2, 5] * 2
    for file in (tmp_path / "fedjax_collapse" / "layouts").iterdir():
        assert " at 0x" not in file.read_text()  # an address would be another one in the next process
        file.write_text("{")
    fastest(network)
    assert timed == [1, 2, 5] * 3


def test_layouts_are_really_timed(federation, network, tmp_path, monkeypatch):
    """Every candidate is compiled and run; chosen is that whose rounds are fastest, as two clients at once are made
    here, though their first round, which compiles, is made the slowest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    timed, delays = [], {1: (0, 0.3, 0.3), 2: (0.6, 0, 0), 5: (0, 0.3, 0.3)}

    class Delayed(engine.Program):
        def __init__(self, rounds, *arguments):
            super().__init__(rounds, *arguments)
            timed.append(rounds.layout.client_map.clients_at_once)
            self.delays = iter(delays[timed[-1]])

        def advance(self, num_rounds):
            advances = super().advance(num_rounds)
            time.sleep(next(self.delays))
            return advances

    monkeypatch.setattr(engine, "Program", Delayed)
    run = Run(federation, FedAvg(TRAINING), jax.random.key(0))
    assert groups.fastest(run, network, Schedule(3), engine.Chunked(1)) == engine.Chunked(2)
    assert timed == [1, 2, 5]  # 10 are more than the cohort
    (file,) = (tmp_path / "fedjax_collapse" / "layouts").iterdir()
    seconds = json.loads(file.read_text())["numbers"]
    assert [int(at_once) for at_once in seconds] == timed and seconds["2"] < 0.3 < seconds["1"]
