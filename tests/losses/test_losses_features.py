"""Losses of features alone: test vectors, batches that say nothing, and the median of the non-zero distances."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import torch
from conftest import cases
from loss_checks import H, Z, bound, compiled, evaluate

from fedjax_collapse import losses

S, A = (f(np.arange(1.0, 1 + n * d) ** 2).reshape(n, d) for f, n, d in ((np.sin, 6, 4), (np.cos, 4, 3)))
LOGITS = np.array([[2, 0, -1], [0.5, 1, 0], [1, 1, 3], [3, 0, 0]])
CONSTANT = np.where(np.arange(3) == 1, 5, Z)  # one of its features
STANDARDISED = (Z - Z.mean(0)) / Z.std(0)

structured = functools.partial(bound, losses.structured_decov)
variance = functools.partial(bound, losses.classifier_variance)
uniformity = functools.partial(bound, losses.hyperspherical_uniformity)
DECOV, SINGULAR, VICREG = map(bound, (losses.decov, losses.singular_value_variance, losses.vicreg_variance))
OFFICIAL, DETACHED = uniformity(1, "lower", True), uniformity(1, "lower", False)


@functools.cache
def decorr(*arguments):
    def loss(features, labels, mask):
        with jax.numpy_rank_promotion("allow"):
            return losses.correlation_frobenius(features, mask, *arguments)

    return loss


@functools.cache
def of_directions(name, *arguments, term=None, directions=1.0):
    """The loss on the directions A."""

    def loss(features, labels, mask):
        values = getattr(losses, name)(features, mask, jnp.asarray(directions * A), *arguments)
        return values if term is None else values[term]

    return loss


TERMS = [of_directions("sliced_normality", term=term) for term in ("scale", "shape", "centre")]
SIGREG, WEAK_SIGREG = of_directions("characteristic_distance"), bound(losses.identity_distance)
VECTORS = [
    (decorr("paper", 0.0), Z, 0.5456790123),
    (decorr("pseudocode", 0.0), Z, 0.3069444444),
    (decorr("official"), Z, 0.7166666565),
    (decorr("paper", 0.0), Z[:2], 1.0),
    (decorr("official", 0.0), Z[:2], 0.5),
    (decorr("official"), CONSTANT, 0.4166666628),
    (decorr("official"), Z[:1], 0.0),
    (DECOV, Z, 1.8125),
    (DECOV, H, 2.3125),
    (structured(2), H, 2.0625),
    (structured(2, 1.0), H, 2.0625 - 0.25),
    (structured(1, -1.0), H, 2.3125),
    (structured(1), H, 0.0),
    (structured(4), H, 2.3125),
    (VICREG, Z / 10, np.mean(np.maximum(1 - np.sqrt(Z.var(0, ddof=1) / 100 + 1e-4), 0))),
    (VICREG, 10 * Z, 0.0),
    (SINGULAR, Z, 1.7222222222),
    (SINGULAR, STANDARDISED, 1.9111111111 / 3),  # proposition 1 of FedDecorr
    (SINGULAR, np.concatenate([np.eye(3), -np.eye(3)]), 0.0),
    (SIGREG, S, 0.5982486304),
    (of_directions("characteristic_distance", "paper"), S, 0.6011833901),
    (SIGREG, 0 * S, 2.412285478),
    (of_directions("characteristic_distance", "paper"), 0 * S, 2.453524321),
    (WEAK_SIGREG, S, 1.185100650),
    (of_directions("identity_distance", directions=0.5), S, 1.362610298),
    (TERMS[0], S, 0.1076489653),
    (TERMS[1], S, 0.2122317100),
    (TERMS[2], S, 0.06773963443),
    (variance(), LOGITS, 0.2567864231),
    (variance(1), LOGITS, 0.2567864231),
    (variance(0), LOGITS, 0.1937880865),
    *((loss, features, value) for features in (Z, 3 * Z, 3 * Z - 100) for loss, value in (
        (OFFICIAL, 0.3617328471), (DETACHED, 0.3617328471), (uniformity(), 0.5598180066),
        (uniformity(2, "lower"), 0.5598180066), (uniformity(2, "average"), 0.6069367404),
    )),
    (OFFICIAL, np.concatenate([Z[:1], Z]), 0.4627060639),  # duplicates are pairs, but are not in the median
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_vectors(number):
    loss, features, expected = VECTORS[number]
    assert evaluate(loss, features)[0] == pytest.approx(expected, rel=2e-9, abs=1e-10)


@cases((1, (0.7071067812, 0.3779644730, 0.1)), (0, (0.5, 0.3499271061, 0.0994987437)))
def test_target_of_the_variance_is_the_deviation_of_the_identity(ddof, expected):
    """Equal rows have deviation zero, so the loss is the target itself."""
    for classes, value in zip((2, 7, 100), expected, strict=True):
        found, gradient = evaluate(variance(ddof), np.zeros((4, classes)))
        assert found == pytest.approx(value, abs=1e-10) and np.all(gradient == 0)
        assert evaluate(variance(ddof), 1e3 * np.eye(classes))[0] == pytest.approx(0, abs=1e-12)


def test_default_of_structured_decov_is_sixteen_groups():
    features = jnp.asarray(np.random.default_rng(0).normal(size=(9, 32)))
    loss = jax.jit(losses.structured_decov, static_argnums=2)
    values = [loss(features, np.ones(9, bool), *groups) for groups in [(), (16,), (8,)]]
    assert values[0] == values[1] != values[2]


@cases(0, 1)
def test_fewer_than_two_rows_are_zero(rows):
    of_four = (SIGREG, WEAK_SIGREG, *TERMS, DECOV, structured(2), bound(losses.vicreg_covariance), VICREG)
    of_three = [variance(*options) for options in [(1,), (0,), (0, "none"), (1, "squared")]]
    for loss, features in [*((loss, S) for loss in of_four), *((loss, LOGITS) for loss in of_three)]:
        value, gradient = evaluate(loss, features[:rows])
        assert value == 0 and np.all(gradient == 0)


def test_rounding_never_makes_a_penalty_negative():
    features = np.zeros((4, 40), np.float32)
    features[:, 3] = [100.1, 0.3, -7.7, 55.5]  # a covariance with one entry: nothing to decorrelate
    for function in (losses.decov, losses.vicreg_covariance, lambda z, m: losses.structured_decov(z, m, 4)):
        value, gradient = jax.jit(jax.value_and_grad(function))(features, np.ones(4, bool))
        assert 0 <= value < 1 and np.all(np.isfinite(gradient))


def test_the_shape_of_visreg_has_no_gradient_through_the_deviations_nor_of_a_constant_feature():
    _, gradient = evaluate(TERMS[1], S)
    sigma, unit = S.std(0) + 1e-6, A / np.linalg.norm(A, axis=0)
    p = (S - S.mean(0)) / sigma @ unit
    q = scipy.stats.norm.ppf(np.arange(1, 7) / 7)[np.argsort(np.argsort(p, axis=0), axis=0)]
    of_centred = 2 * (p - q) @ unit.T / (p.size * sigma)
    np.testing.assert_allclose(gradient, of_centred - of_centred.mean(0), rtol=1e-9)
    _, gradient = evaluate(TERMS[1], np.where(np.arange(4) == 1, 3.0, S))
    assert np.all(gradient[:, 1] == 0) and np.any(gradient[:, 0] != 0)


def test_gradient_of_a_detached_median():
    expected = [
        [0.0068404166, 0, 0.0709549397],
        [-0.0487586902, 0.0698286565, 0.0029678962],
        [0.0709204845, -0.0631692771, -0.0170102421],
        [-0.0290022109, -0.0066593794, -0.0569125937],
    ]
    np.testing.assert_allclose(evaluate(DETACHED, Z)[1], expected, atol=1e-10)


def test_tied_medians_have_the_gradient_of_pytorch():
    """Of eleven equal rows and another one, and where one or both of the middle distances of an even number are tied.

    PyTorch divides the gradient of a median without a dimension among all that are equal to it.
    """
    for counts in ((11, 1), (2, 1, 1), (1, 1, 2), (1, 3)):  # how often the rows of Z occur
        features = np.repeat(Z[: len(counts)] - Z[0], counts, axis=0)
        for kernel_scale, median in itertools.product((1, 2), ("lower", "average")):
            rows = torch.tensor(features, requires_grad=True)
            pairs = torch.triu_indices(len(rows), len(rows), 1)
            squares = ((rows[pairs[0]] - rows[pairs[1]]) ** 2).sum(1)
            nonzero = squares[squares > 0]
            sigma = nonzero.median() if median == "lower" else (nonzero.median() - (-nonzero).median()) / 2
            torch.exp(-squares / (kernel_scale * sigma)).mean().backward()
            _, gradient = evaluate(uniformity(kernel_scale, median), features)
            np.testing.assert_allclose(gradient, rows.grad, atol=1e-12)


@cases([0.0, 0, 0], [0.1, -7.3, 1e3])
def test_uniformity_of_equal_rows_is_one(row):
    for loss in (OFFICIAL, DETACHED, uniformity(2, "average")):
        value, gradient = evaluate(loss, np.tile(row, (5, 1)))
        assert value == 1 and np.all(gradient == 0)
        assert evaluate(loss, np.array([row]))[0] == 0


def test_uniformity_of_nearly_equal_rows_far_from_the_origin():
    """Distances are differences, so float32 does not lose them; nor does the scale of the features matter."""
    rows = (1000 + Z / 64).astype(np.float32)
    for features in (rows, Z.astype(np.float32) * 1e-8, Z.astype(np.float32) * 1e8):
        value = compiled(losses.hyperspherical_uniformity)(features, np.ones(4, bool))
        assert float(value) == pytest.approx(0.5598180066, rel=1e-5)
