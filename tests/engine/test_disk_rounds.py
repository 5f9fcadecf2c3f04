"""Rounds from a store on disk: the same bits as from memory, for as many bytes as the cohort has."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import assert_same_bits, cases, check
from small_store import save_small_store

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Participation, Scaffold, engine, nn, simulate
from fedjax_collapse.data import augment
from fedjax_collapse.engine import client_states
from fedjax_collapse.run.divergence import Suspicion, find_nonfinite

SIZES = (3, 9, 1, 5, 14, 2, 7, 4, 6, 8)
TRAINING = LocalTraining(
    epochs=2, batch_size=4, learning_rate=0.05, augmentation=augment.preset("feddecorr_cifar10"), logged_epochs=1
)
SCAFFOLD = FedAvg(TRAINING, {"scaffold": Scaffold()})
OPTIONS = dict(rounds=5, key=jax.random.key(1), evaluate_every=2, checkpoint_every=2, watch="all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_small_store(tmp_path_factory.mktemp("data") / "store", SIZES, tests=20)


def run(store, storage="disk", most=6, algorithm=None, sampler=None, **options):
    federation = Federation.from_store(store, examples_per_client=most, storage=storage)
    model = Model(nn.MLP(3, hidden=(4,)), federation.input_shape)
    rule = Participation(fraction=0.4, dropout=0.2, sampler=sampler or engine.HostUniform())
    options = OPTIONS | {"participation": rule} | options
    return simulate(federation, model, algorithm or FedAvg(TRAINING), **options)


def dense(clients, num_clients):
    """The arrays of a cohort [rounds, cohort] as those of all clients [rounds, clients]."""
    ids = clients["client"]
    spread = {}
    for name in clients.keys() - {"client", "round"}:
        whole = np.full((len(ids), num_clients + 1), 0 if name == "steps" else np.nan, clients[name].dtype)
        np.put_along_axis(whole, ids, clients[name], axis=1)
        spread[name] = whole[:, :-1]
    return spread | {"round": clients["round"]}


@pytest.mark.slow
@cases(("stop", engine.Chunked(1)), ("skip_client", engine.Sharded(2, engine.Chunked(1))))
def test_the_same_bits_as_from_memory(on_nan, client_map, folder):
    stored, held = (run(folder, storage, on_nan=on_nan, client_map=client_map) for storage in ("disk", "host"))
    assert stored.metrics == held.metrics
    assert_same_bits(jax.device_get(stored.variables), jax.device_get(held.variables))
    assert stored.clients["client"].shape == (5, 4)
    assert_same_bits(dense(stored.clients, len(SIZES)), dict(held.clients))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(TRAINING), SCAFFOLD], ids=["fedavg", "scaffold"])
def test_an_interrupted_run_resumes_to_the_same_bits(folder, tmp_path, algorithm, monkeypatch):
    """Also the states of clients: those in files, after rounds that no checkpoint has, are undone."""
    held = run(folder, "host", algorithm=algorithm)
    assert run(folder, algorithm=algorithm, folder=tmp_path / "whole").metrics == held.metrics

    def fail(row, timing):
        if row["round"] == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(folder, algorithm=algorithm, folder=tmp_path / "part", listener=fail)
    assert (tmp_path / "part" / "states").exists() == (algorithm is SCAFFOLD)
    again = run(folder, algorithm=algorithm, folder=tmp_path / "part")
    assert again.metrics == held.metrics
    assert_same_bits(jax.device_get(again.variables), jax.device_get(held.variables))
    assert_same_bits(dense(again.clients, len(SIZES)), dict(held.clients))
    assert_same_bits(jax.device_get(again.state.server.shared), jax.device_get(held.state.server.shared))
    check("holds another run: partition", run, folder, most=7, algorithm=algorithm, folder=tmp_path / "part")


@pytest.mark.slow
def test_states_larger_than_the_disk_are_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(client_states.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    check("about 9 clients, .* GiB are free", run, folder, algorithm=SCAFFOLD, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_client_that_diverges_is_named():
    losses = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    steps, clients = np.array([[1, 1, 0], [2, 2, 0]]), np.array([[4, 7, 9], [2, 8, 9]])
    record = engine.RoundRecord({"task_loss": losses}, steps, clients)
    assert find_nonfinite(record, 6, 1.0, "accuracy") == Suspicion(6, (8,), ("task_loss",))
    record.metrics["task_loss"][1, 1] = 0
    assert find_nonfinite(record, 6, np.nan, "accuracy") == Suspicion(6, (2, 8), ())


def test_the_rows_of_one_client(folder):
    rows = Federation.from_store(folder, examples_per_client=6).ownership.rows
    assert rows.shape == (10, 6)
    assert rows[1].tolist() == [3, 4, 5, 6, 7, 8] and rows[2].tolist() == [12, 0, 0, 0, 0, 0]


def test_the_draw_is_uniform_sorted_and_of_the_cohort_only():
    sampler, counts = engine.HostUniform(), np.zeros(7)
    for seed in range(2000):
        drawn = sampler.draw_on_host(jax.random.key_data(jax.random.key(seed)), 7, 3)
        assert (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < 7
        counts[drawn] += 1
    assert np.abs(counts / 2000 - 3 / 7).max() < 0.04  # 3.6 standard deviations of each
    many = sampler.draw_on_host(np.array([1, 2], np.uint32), 10**9, 1000)
    assert len(set(many.tolist())) == 1000 and many.max() > 9e8
    assert sampler.draw_on_host(np.array([1, 2], np.uint32), 10, 3).tolist() == [6, 8, 9]  # as ever


def test_the_draw_is_the_same_inside_a_program():
    sampler, key, sizes = engine.HostUniform(), jax.random.key(3), np.ones(50, np.int32)
    drawn = jax.jit(sampler.draw, static_argnums=2)(key, sizes, 5)
    assert drawn.tolist() == sampler.draw_on_host(jax.random.key_data(key), 50, 5).tolist()


@cases(
    (r"expected engine\.HostUniform", dict(participation=Participation(0.4))),
    ("virtual time needs all clients", dict(participation=Participation(clock=engine.Clock(1.0)))),
    ("personal models and own tests of all clients", dict(algorithm=FedAvg(TRAINING, private="head"))),
    ("choose 'disk' or 'auto'", dict(storage="host")),
)
def test_wrong_choices_are_one_line(message, options, folder):
    federation, algorithm = Federation.from_store(folder), options.pop("algorithm", FedAvg(TRAINING))
    model = Model(nn.MLP(3, hidden=(4,)), federation.input_shape)
    check(message, simulate, federation, model, algorithm, rounds=1, key=OPTIONS["key"], **options)


def test_examples_in_memory_are_not_on_disk(federation):
    given, options = (federation, Model(nn.MLP(4), federation.input_shape), FedAvg()), OPTIONS | dict(storage="disk")
    check("the examples are not in a store on disk, choose 'host'", simulate, *given, **options)
