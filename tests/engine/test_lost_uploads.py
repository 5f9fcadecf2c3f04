"""A client whose upload is lost has trained; for the server it is as one that was not drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, Given, assert_close, assert_same_bits, run_at_once

from fedjax_collapse import FedAvg, Model, Participation, engine, methods, nn

pytestmark = pytest.mark.slow

LOST = Participation(upload_loss=0.5)
ARMS = {
    "scaffold_moon_fednova": FedAvg(
        TRAINING, {"scaffold": methods.Scaffold(), "moon": methods.MOON(), "fednova": methods.FedNova()}
    ),
    "feddc_fedmr_top_k_by_batches": FedAvg(
        TRAINING,
        {"feddc": methods.FedDC(), "fedmr": methods.FedMR(initial_prototypes=True), "top_k": methods.TopK(0.5)},
        weighting="batches",
    ),
    "recalibrated_fedper": FedAvg(TRAINING, {"recalibrate": methods.Recalibrate()}, private="head"),
}


def run(federation, network, algorithm, participation, rounds=1, **options):
    return run_at_once(federation, network, algorithm, rounds, participation=participation, **options)


@pytest.mark.parametrize("arm", ARMS)
def test_the_server_sees_those_that_arrive_and_the_others_go_on(float64, federation, network, arm):
    """The server is that of a run of the arrived alone; every client's state is that of a run without loss."""
    algorithm = ARMS[arm]
    network = Model(nn.MLP(4, hidden=(3,), norm="batch"), federation.input_shape) if "recalibrated" in arm else network
    result = run(federation, network, algorithm, LOST)
    arrived = np.flatnonzero(result.clients["arrived"][0])
    assert 1 <= len(arrived) < 5 and (result.clients["steps"] > 0).all()
    without = run(federation, network, algorithm, LOST.replace(upload_loss=0.0))
    assert without.clients["arrived"].all()
    assert_close(result.state.clients, without.state.clients, 1e-12)
    rule = Given(fraction=len(arrived) / 5, cohort=jnp.asarray(arrived))
    alone = run(federation, network, algorithm, rule)
    assert_close(result.state.server, alone.state.server, 1e-12)
    leaves = zip(*(jax.tree.leaves(r.state.server.variables.params) for r in (result, without)), strict=True)
    assert max(np.abs(a - b).max() for a, b in leaves) > 1e-4


def test_recorded_is_who_trained(federation, network):
    """``arrived`` is NaN outside the cohort; the loss of a client whose upload is lost is there."""
    result = run(federation, network, FedAvg(TRAINING), LOST.replace(fraction=0.6), rounds=6)
    arrived, took_part = result.clients["arrived"], result.clients["steps"] > 0
    assert (took_part.sum(axis=1) == 3).all()
    for metric in (arrived, result.clients["task_loss"]):
        np.testing.assert_array_equal(np.isfinite(metric), took_part)
    assert set(arrived[took_part]) == {0, 1} and (np.nansum(arrived, axis=1) >= 1).all()
    sizes = np.asarray(federation.ownership.sizes)
    expected = np.average(arrived[-1][took_part[-1]], weights=sizes[took_part[-1]])
    assert result.metrics[-1]["train/arrived"] == pytest.approx(expected)


def test_where_no_loss_is_asked_for_there_is_none(float64, federation, network):
    default, none = (run(federation, network, FedAvg(TRAINING), rule) for rule in (1.0, LOST.replace(upload_loss=0.0)))
    assert "arrived" not in default.clients
    assert_close(none.variables, default.variables, 1e-12)


def test_one_arrives_even_if_all_are_lost(federation, network):
    result = run(federation, network, FedAvg(TRAINING), LOST.replace(upload_loss=1.0), rounds=4)
    assert (result.clients["arrived"].sum(axis=1) == 1).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.variables))


UNRELIABLE = Participation(
    0.8, engine.Available(0.9, period=8), dropout=0.2, stragglers=0.4, upload_loss=0.4,
    clock=engine.Clock(1.0, step_spread=1.0, deadline=4.0),
)  # fmt: skip
ALGORITHM = FedAvg(TRAINING.replace(steps=4), {"scaffold": methods.Scaffold()})


def test_layouts_and_storages_agree(float64, federation, network):
    expected = run(federation, network, ALGORITHM, UNRELIABLE, rounds=4)
    chunked = run(federation, network, ALGORITHM, UNRELIABLE, rounds=4, client_map=engine.Chunked(2))
    sharded = dict(client_map=engine.Sharded(2, engine.Chunked(1)))
    for result in (chunked, run(federation, network, ALGORITHM, UNRELIABLE, rounds=4, **sharded)):
        assert_close(result.state.server, expected.state.server, 1e-9)
        assert_close(result.state.clients, expected.state.clients, 1e-9)
        for name in ("steps", "arrived"):
            assert_same_bits(result.clients[name], expected.clients[name])
        assert [r["virtual/seconds"] for r in result.metrics] == [r["virtual/seconds"] for r in expected.metrics]
    hosted = run(
        federation, network, ALGORITHM, UNRELIABLE, rounds=4, client_map=engine.Chunked(2), storage="host"
    )  # fmt: skip
    assert_same_bits(hosted.clients, chunked.clients)
    assert_same_bits(hosted.variables, chunked.variables)
    lost = expected.clients["arrived"] == 0
    assert lost.any() and (expected.clients["arrived"] == 1).any(axis=1).all()
