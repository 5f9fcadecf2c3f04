"""FedUV's two terms: test vectors, the definitions by NumPy, invariances, and the median of the non-zero distances."""

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from loss_checks import Z, bound, compiled, evaluate, pad_batch

from fedjax_collapse.losses import classifier_variance, hyperspherical_uniformity

LOGITS = np.array([[2, 0, -1], [0.5, 1, 0], [1, 1, 3], [3, 0, 0]])
TARGETS = {2: (0.7071067812, 0.5), 7: (0.3779644730, 0.3499271061), 100: (0.1, 0.0994987437)}


variance = functools.partial(bound, classifier_variance)
uniformity = functools.partial(bound, hyperspherical_uniformity)
OFFICIAL = uniformity(1, "lower", True)
DETACHED = uniformity(1, "lower", False)


def test_variance_vectors():
    assert evaluate(variance(), LOGITS)[0] == pytest.approx(0.2567864231, abs=1e-10)
    assert evaluate(variance(1), LOGITS)[0] == pytest.approx(0.2567864231, abs=1e-10)
    assert evaluate(variance(0), LOGITS)[0] == pytest.approx(0.1937880865, abs=1e-10)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("hinge", ["plain", "squared", "none"])
@pytest.mark.parametrize("exceed", [False, True])  # may a deviation exceed that of the identity?
def test_variance_definition(ddof, hinge, exceed):
    logits = 20 * LOGITS[2:] if exceed else LOGITS
    exponentials = np.exp(logits)
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    gaps = np.std(np.eye(3), axis=0, ddof=ddof) - np.std(probabilities, axis=0, ddof=ddof)
    expected = {"plain": np.maximum(gaps, 0), "squared": np.maximum(gaps, 0) ** 2, "none": gaps}[hinge]
    value, _ = evaluate(variance(ddof, hinge), logits)
    assert value == pytest.approx(np.mean(expected), rel=1e-9)
    assert np.any(gaps < 0) == exceed


@pytest.mark.parametrize("classes", TARGETS)
def test_target_is_the_deviation_of_the_identity(classes):
    """Equal rows have deviation zero, so the loss is the target itself."""
    for ddof, expected in zip((1, 0), TARGETS[classes], strict=True):
        value, gradient = evaluate(variance(ddof), np.zeros((4, classes)))
        assert value == pytest.approx(expected, abs=1e-10) and np.all(gradient == 0)
        assert evaluate(variance(ddof), 1e3 * np.eye(classes))[0] == pytest.approx(0, abs=1e-12)


def test_variance_of_fewer_than_two_rows_is_zero():
    for options in [(1,), (0,), (0, "none"), (1, "squared")]:
        value, gradient = evaluate(variance(*options), LOGITS[:1])
        assert value == 0 and np.all(gradient == 0)


@pytest.mark.parametrize(
    "expected, loss",
    [
        (0.3617328471, OFFICIAL),
        (0.3617328471, DETACHED),
        (0.5598180066, uniformity()),
        (0.5598180066, uniformity(2, "lower")),
        (0.6069367404, uniformity(2, "average")),
    ],
)
def test_uniformity_vectors(expected, loss):
    for features in (Z, 3 * Z, 3 * Z - 100):
        assert evaluate(loss, features)[0] == pytest.approx(expected, abs=1e-10)


def test_duplicates_count_as_pairs_but_not_for_the_median():
    doubled = np.concatenate([Z[:1], Z])
    assert evaluate(OFFICIAL, doubled)[0] == pytest.approx(0.4627060639, abs=1e-10)


def test_gradient_of_a_detached_median():
    expected = [
        [0.0068404166, 0, 0.0709549397],
        [-0.0487586902, 0.0698286565, 0.0029678962],
        [0.0709204845, -0.0631692771, -0.0170102421],
        [-0.0290022109, -0.0066593794, -0.0569125937],
    ]
    np.testing.assert_allclose(evaluate(DETACHED, Z)[1], expected, atol=1e-10)


CHOICES = list(itertools.product((1, 2), ("lower", "average"), (True, False)))  # kernel_scale, median, attached


def all_choices(features, labels, mask):
    return jnp.stack([uniformity(*choice)(features, labels, mask) for choice in CHOICES])


all_gradients = jax.jacrev(all_choices)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.sampled_from([(2, 3), (3, 1), (7, 4)]), st.booleans(), st.integers(0, 1000))
def test_uniformity_definition_and_invariances(shape, duplicate, seed):
    features = np.random.default_rng(seed).normal(size=shape).round(1)  # rounded: some distances are equal
    features[0] = features[-1] if duplicate else features[0]
    squares = np.array([np.sum((a - b) ** 2) for i, a in enumerate(features) for b in features[:i]])
    ordered = np.sort(squares[squares > 0])
    sigmas = {"lower": 1.0, "average": 1.0}
    if len(ordered):
        sigmas = {"lower": ordered[(len(ordered) - 1) // 2], "average": np.median(ordered)}
    padded, labels, mask = pad_batch(features, np.zeros(len(features)))
    with jax.enable_x64(True):
        batch = jnp.asarray(padded), jnp.asarray(labels), jnp.asarray(mask)
        values, gradients = np.asarray(compiled(all_choices)(*batch)), np.asarray(compiled(all_gradients)(*batch))
        moved = compiled(all_choices)(5 * batch[0] + 3, *batch[1:])
    gradients = gradients[:, mask]
    expected = [np.mean(np.exp(-squares / (scale * sigmas[median]))) for scale, median, _ in CHOICES]
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    np.testing.assert_allclose(moved, expected, rtol=1e-9)
    assert np.all(values > 0) and np.all(values <= 1)
    pulls = np.sum(gradients * features, axis=(1, 2))
    np.testing.assert_allclose(pulls[0::2], 0, atol=1e-9)  # attached: none on the scale
    assert np.all(pulls[1::2] <= 0) and (len(ordered) == 0 or np.all(pulls[1::2] < 0))  # detached: descent inflates
    np.testing.assert_allclose(np.sum(gradients, axis=1), 0, atol=1e-9)  # none on the mean


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


@pytest.mark.parametrize("row", [[0.0, 0, 0], [0.1, -7.3, 1e3]])
def test_equal_rows(row):
    for loss in (OFFICIAL, DETACHED, uniformity(2, "average")):
        value, gradient = evaluate(loss, np.tile(row, (5, 1)))
        assert value == 1 and np.all(gradient == 0)
        assert evaluate(loss, np.array([row]))[0] == 0


def test_nearly_equal_rows_far_from_the_origin():
    """Distances are differences, so float32 does not lose them; nor does the scale of the features matter."""
    rows = (1000 + Z / 64).astype(np.float32)
    for features in (rows, Z.astype(np.float32) * 1e-8, Z.astype(np.float32) * 1e8):
        value = hyperspherical_uniformity(jnp.asarray(features), jnp.ones(4, bool))
        assert float(value) == pytest.approx(0.5598180066, rel=1e-5)
