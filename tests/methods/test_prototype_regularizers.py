"""FedMR and FedProc: the prototypes that the server stores, who submits them, and their first round."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line
from loss_checks import Y6, Z6

from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn
from fedjax_collapse.core.records import Batch, Outputs
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.methods import FedLC, FedMR, FedProc
from fedjax_collapse.methods._prototypes import Prototypes
from fedjax_collapse.methods.collapse.fedmr import draw_rows, is_submitter


def report(regularizer, features, labels, shared, client=0):
    """What a client of these features, in one batch with a row of padding, reports."""
    features, labels = np.concatenate([features, np.full((1, 3), np.nan)]), np.concatenate([labels, [0]])
    batch = Batch(None, jnp.asarray(labels), jnp.arange(len(labels)) < len(labels) - 1)

    def run(variables, summarize, train):
        return summarize(Outputs(jnp.asarray(features), None), batch)

    client = SimpleNamespace(id=jnp.array(client))
    view = SimpleNamespace(trained=None, shared=shared, memory=(), client=client, sum_over_data=run)
    return regularizer.finish(view)[1]


@pytest.mark.parametrize("regularizer", [FedMR(), FedProc()])
def test_prototypes_are_sample_weighted_means_and_missing_classes_keep_theirs(float64, regularizer):
    shapes = Outputs(jax.ShapeDtypeStruct((1, 3), float), jax.ShapeDtypeStruct((1, 4), float))
    shared = regularizer.init_shared(None, shapes)
    assert not shared.valid.any() and not shared.means.any()
    before = Prototypes(shared.means.at[2].set(7.0), shared.valid.at[2].set(True))
    alone = regularizer.combine(before, report(regularizer, Z6, Y6, before))
    np.testing.assert_allclose(alone.means, [[7 / 3, 2 / 3, 1], [1, 10 / 3, 2], [7, 7, 7], [0, 0, 0]], rtol=1e-12)
    assert alone.valid.tolist() == [True, True, True, False]
    reports = (report(regularizer, *client, before) for client in ((Z6, Y6), (np.array([[5.0, 1, 0]]), [0])))
    both = regularizer.combine(before, jax.tree.map(jnp.add, *reports))
    np.testing.assert_allclose(both.means, [[3, 0.75, 0.75], [1, 10 / 3, 2], [7, 7, 7], [0, 0, 0]], rtol=1e-12)


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.5, 5), (0.8, 8), (1.0, 10)])
def test_the_submitters_are_a_fixed_fraction_of_the_clients(fraction, count):
    chosen = np.array([is_submitter(client, fraction, 0) for client in range(30)]).reshape(3, 10)
    assert chosen.sum(axis=1).tolist() == [count] * 3
    if count in (5, 8):
        assert len(np.unique(chosen, axis=0)) > 1  # not the same neighbours everywhere
        other = [is_submitter(client, fraction, 1) for client in range(30)]
        assert other != chosen.ravel().tolist()


def test_lite_draws_rows_without_replacement_and_padding_takes_no_place():
    mask = jnp.arange(9) % 3 > 0
    drawn = np.array(jax.vmap(lambda key: draw_rows(key, mask, 4))(jax.random.split(jax.random.key(0), 500)))
    assert (drawn.sum(axis=1) == 4).all() and not drawn[:, ~mask].any()
    np.testing.assert_allclose(drawn.mean(axis=0)[mask], 4 / 6, atol=0.1)
    assert draw_rows(jax.random.key(0), mask, 8)[mask].all()


@pytest.mark.slow
def test_prototypes_of_the_initial_model(federation):
    """Before the first round: over the clients that submit, all of them, in the cohort or not."""
    model, variables = Model(nn.SmallCNN(4, (5,)), federation.input_shape), None
    variables = model.init(jax.random.key(0))
    regularizer = FedMR(initial_prototypes=True, submission=0.5)
    algorithm = jax.tree.map(jnp.asarray, FedAvg(LocalTraining(batch_size=8), {"fedmr": regularizer}))
    state = engine.init(algorithm, model, variables, 5, jax.random.key(1))
    rounds = engine.RoundSpec(model, engine.Layout(engine.Chunked(2), 5))
    started, _ = engine.with_first_reports(
        rounds, algorithm, state, engine.Assignment(federation.ownership), federation.train
    )
    submitters = [client for client in range(5) if is_submitter(client, 0.5, 0)]
    rows = [federation.ownership.rows[c, : federation.ownership.sizes[c]] for c in submitters]
    rows = jnp.concatenate(rows)
    outputs, _ = model.apply(variables, get_batch(federation.train, rows, jnp.ones(len(rows), bool)), train=False)
    labels = federation.train.labels[rows]
    expected = [outputs.features[labels == c].mean(0) for c in range(4)]
    assert 0 < len(submitters) < 5 and started.server.shared["fedmr"].valid.all()
    np.testing.assert_allclose(started.server.shared["fedmr"].means, expected, rtol=1e-5, atol=1e-6)


def test_one_hot_prototypes_stay():
    shapes = Outputs(jax.ShapeDtypeStruct((1, 3), np.float32), jax.ShapeDtypeStruct((1, 2), np.float32))
    regularizer = FedMR(prototypes="one_hot")
    shared = regularizer.init_shared(None, shapes)
    assert shared.means.tolist() == [[1, 0, 0], [0, 1, 0]] and shared.valid.all()
    assert not any(map(regularizer.has, ("finish", "combine", "measure", "after_round")))


def test_fedproc_is_rejected_with_another_task_loss(model):
    for methods in ({"fedproc": FedProc(), "fedlc": FedLC()}, {"fedlc": FedLC(), "fedproc": FedProc()}):
        with one_line("methods fedproc and fedlc: fedproc ends with plain cross-entropy"):
            FedAvg(LocalTraining(), methods).check(model)


def test_fedproc_fades_into_cross_entropy():
    weights = [float(FedProc(ramp_rounds=4.0).prototype_weight(jnp.array(r))) for r in range(6)]
    assert weights == [0, 0.75, 0.5, 0.25, 0, 0]
