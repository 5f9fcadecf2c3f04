"""Self-supervised learning: test vectors, whole rounds in PyTorch, views, and what is rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, cases, check, run_at_once
from engine_rounds import run_rounds
from reference.rounds import TRAINING
from reference.self_supervised import PlainBYOL, PlainSimSiam, PlainSSD, SiameseRounds, TorchSiamese, brighter

from fedjax_collapse import SELF_SUPERVISED, FedAvg, FedDecorr, Model, losses, nn, self_supervised
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.losses.contrastive import clipped_unit
from fedjax_collapse.measurements import confusion, layers, linear_probe, neural_collapse
from fedjax_collapse.methods import BYOL, SSD, FedEMA, FedU2
from fedjax_collapse.methods.self_supervised.fedema import distance
from fedjax_collapse.nn.heads import Siamese
from fedjax_collapse.optim.combination import smallest_combination
from fedjax_collapse.schema.options import with_options

AUGMENTED = TRAINING.replace(augmentation=brighter)
ALL = jnp.ones(3, bool)
VECTOR = 1e-9  # ten digits are given


def siamese(task=SELF_SUPERVISED, **options):
    head = with_options(Siamese, **dict(hidden=7, dim=6) | options)
    return Model(nn.MLP(4, hidden=(6,), head=head), (8, 8, 2), task=task)


def numbers(function, *shape):
    count = 1 + jnp.arange(np.prod(shape), dtype=float).reshape(shape)
    return function(count**2)


def test_losses_of_given_rows(float64):
    def pairs():
        s, c = numbers(jnp.sin, 3, 4), numbers(jnp.cos, 3, 4)
        z, u, t = map(clipped_unit, (s, c, jnp.cos(1.0 + jnp.arange(12.0).reshape(3, 4))))
        weights = smallest_combination(4 * z @ z.T, ALL)
        yield -losses.view_similarity(jnp.stack([s, c]), jnp.stack([s, c]), ALL), 0.07591640299
        yield 2 - 2 * losses.view_similarity(s[None], c[None], ALL), 2.151832806
        yield losses.pair_uniformity(z, ALL), -3.764064076
        yield 3 * losses.tangent_distance(z, u, t, numbers(jnp.cos, 2, 4), ALL), 3.070325672
        yield weights, np.array([0.1927982792, 0.4211684746, 0.3860332462])
        yield 4 * weights @ z @ z.T @ weights, 1.124071266
        yield distance({"a": numbers(jnp.sin, 2, 3)}, {"a": numbers(jnp.cos, 2, 3)}), 2.075923020

    for value, expected in jax.jit(lambda: [*pairs()])():
        assert_close(value, expected, VECTOR)


@cases("pair_uniformity", "tangent_distance", "view_similarity")
def test_padding_changes_no_loss(loss):
    rows, others = (jax.random.normal(jax.random.key(i), (5, 4)) for i in range(2))
    tangents, directions = clipped_unit(others[:3]), rows[:2]

    def value(rows, mask):
        if loss == "pair_uniformity":
            return losses.pair_uniformity(rows, mask)
        if loss == "view_similarity":
            return losses.view_similarity(jnp.stack([rows, 2 * rows]), jnp.stack([rows, rows - 1]), mask)
        return losses.tangent_distance(rows, clipped_unit(others), tangents, directions, mask)

    mask = jnp.arange(5) < 3
    rows = clipped_unit(rows)
    wrong = jnp.where(mask[:, None], rows, jnp.inf if loss != "view_similarity" else 1e3)
    expected, found = map(jax.jit(jax.value_and_grad(value)), (rows, wrong), (mask, mask))
    assert_same_bits(found, expected)
    assert np.isfinite(found[0]) and np.abs(found[1][:3]).max() > 0 and np.abs(found[1][3:]).max() == 0


U2 = FedU2(0.3, server="equal", rate=0.2)
ROUNDS = {
    "simsiam": ({}, PlainSimSiam(), {}, SELF_SUPERVISED),
    "without stop-gradient": ({}, PlainSimSiam(False), dict(predictor=False), self_supervised(stop_gradient=False)),
    "byol": (dict(byol=BYOL(0.8)), PlainBYOL(0.8), {}, SELF_SUPERVISED),
    "byol, fedema, fedu2": (
        dict(byol=BYOL(0.9), fedema=FedEMA(0.6), fedu2=U2), PlainBYOL(0.9, 0.6, 0.3, 0.2), {}, SELF_SUPERVISED
    ),
    "ssd": (dict(ssd=SSD(0.5, 3.0, 0.4, 1.5)), PlainSSD(0.5, 3.0, 0.4, 1.5, 5), {}, SELF_SUPERVISED),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_equal_a_plain_pytorch_loop(float64, federation, name):
    """Three of five clients in each of three rounds; some come back at once, others later."""
    added, plain, options, task = ROUNDS[name]
    model = siamese(task, **options)
    variables = jax.device_get(model.init(jax.random.key(0)))
    algorithm = FedAvg(AUGMENTED, added)
    algorithm.check(model)
    options = dict(cohort_size=3, max_rounds=3, variables=variables)
    state = run_rounds(federation, model, algorithm, num_rounds=3, **options).state
    reference = SiameseRounds(federation, plain, variables, AUGMENTED, TorchSiamese).run(jax.random.key(1), 3)
    assert_close(state.server.variables, reference.server.dump(), 1e-8)


def test_views_are_augmented_apart(federation):
    rows, mask, key = jnp.arange(4), jnp.ones(4, bool), jax.random.key(0)
    one = get_batch(federation.train, rows, mask, brighter, key)
    two = get_batch(federation.train, rows, mask, brighter, key, views=2)
    assert_same_bits(one.inputs, two.inputs)
    assert one.views == () and np.abs(two.views[0] - two.inputs).max(axis=(1, 2, 3)).min() > 0
    turned = get_batch(federation.train, rows[::-1], mask, brighter, key, views=2)
    assert_same_bits(two.views[0], turned.views[0][::-1])


def test_labels_are_never_read(federation):
    """Rounds with other labels have the same bits; only the probe of the features differs."""
    algorithm = FedAvg(AUGMENTED, {"byol": BYOL(), "feddecorr": FedDecorr(0.1)})
    other = federation._replace(train=federation.train._replace(labels=federation.train.labels[::-1]))
    measured = {"probe": linear_probe, "nc": neural_collapse, "layers": layers}
    results = [run_at_once(data, siamese(), algorithm, measurements=measured) for data in (federation, other)]
    assert_same_bits(results[0].variables, results[1].variables)
    rows = [result.metrics[-1] for result in results]
    assert rows[0]["similarity"] == rows[1]["similarity"] and -1 <= rows[0]["similarity"] <= 1
    assert 0.25 < rows[0]["measured/probe/accuracy"] <= 1 and np.isnan(rows[0]["measured/probe/head_accuracy"])
    assert rows[0]["measured/nc/nc1"] > 0 and np.isnan(rows[0]["measured/nc/nc4"])
    message = "measurement confusion: it compares classes, and this task has none"
    check(message, run_at_once, federation, siamese(), algorithm, measurements={"it": confusion})


@cases(
    (FedAvg(AUGMENTED, {"it": BYOL()}), Model(nn.MLP(4), (8, 8, 2)), "method it: the model's task has one view"),
    (FedAvg(AUGMENTED), Model(nn.MLP(4), (8, 8, 2), task=SELF_SUPERVISED), r"logits \[4\] .* network.head='siamese'"),
    (FedAvg(TRAINING), siamese(), "training.augmentation: none, but the task compares 2 augmented views"),
    (FedAvg(AUGMENTED, {"it": SSD()}), siamese(dim=9), "SSD: 6 features, 9 projections; expected as many, set .*dim=6"),
    (FedAvg(AUGMENTED, {"it": SSD(distillation=0)}), siamese(dim=3), "SSD: 5 clients share 3 dimensions"),
)  # fmt: skip
def test_what_does_not_fit_is_named(algorithm, model, message, federation):
    check(message, run_at_once, federation, model, algorithm)
