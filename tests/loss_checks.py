"""What the tests of the losses share.

A loss here is a function of features [batch, d], labels [batch], mask [batch] and extra arrays. Compiled losses are
kept, so tests of many examples use few shapes and the same function object.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from conftest import assert_same_bits

GARBAGE = (np.nan, 1e30, np.inf)
Z = np.array([[1, 2, 0], [2, 1, 1], [0, 3, 1], [3, 2, 4]], float)
H = np.array([[1, 2, 0, 1], [2, 1, 1, 0], [0, 3, 1, 2], [3, 2, 4, 1]], float)
Z6 = np.array([[1, 0, 2], [2, 1, 1], [4, 1, 0], [0, 3, 1], [1, 2, 2], [2, 5, 3]], float)
Y6 = np.array([0, 0, 0, 1, 1, 1])

compiled = functools.cache(jax.jit)


@functools.cache
def bound(function, *arguments, **options):
    """The loss with these arguments after its arrays; it may not look at labels."""
    takes_labels = "labels" in inspect.signature(function).parameters

    def loss(features, labels, mask, *extras):
        rows = (features, labels) if takes_labels else (features,)
        return function(*rows, mask, *extras, *arguments, **options)

    return loss


@functools.cache
def compiled_gradient(loss):
    return jax.jit(jax.value_and_grad(loss))


@functools.cache
def compiled_over_clients(function, extras):
    return jax.jit(jax.vmap(function, in_axes=(0, 0, 0, *(None,) * extras)))


def pad(rows):
    """One row of garbage in front and two behind."""
    first, *rest = (np.full((1, *rows.shape[1:]), value) for value in GARBAGE)
    return np.concatenate([first, rows, *rest])


def pad_batch(features, labels):
    """Features, labels and mask of a batch with three rows of garbage, labelled like true rows and like none."""
    mask = np.array([False, *[True] * len(features), False, False])
    return pad(features), np.concatenate([labels[:1], labels, labels[-1:], [99]]), mask


def evaluate(loss, features, labels=None, extras=()):
    """Value and gradient on the rows, in float64, in a batch that is padded: with garbage as with zeros, bit for bit,
    and without a gradient."""
    features = np.asarray(features, float)
    features, labels, mask = pad_batch(features, np.zeros(len(features), int) if labels is None else np.asarray(labels))
    outcomes = []
    for rows in (features, np.where(mask[:, None], features, 0)):
        with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
            outcomes.append(compiled_gradient(loss)(*map(jnp.asarray, (rows, labels, mask, *extras))))
    assert_same_bits(*outcomes)
    value, gradient = outcomes[0][0], np.asarray(outcomes[0][1])
    assert value.dtype == gradient.dtype == np.float64 and value.shape == ()
    assert np.all(gradient[~mask] == 0)
    return float(value), gradient[mask]


def difference_quotients(loss, features, labels, extras, step=1e-6):
    """The gradient in float64 by central differences."""
    shifts = step * np.eye(features.size).reshape(-1, *features.shape)
    both = np.concatenate([features + shifts, features - shifts])
    masks, labels = np.ones((len(both), len(features)), bool), np.tile(labels, (len(both), 1))
    with jax.enable_x64(True):
        values = compiled_over_clients(loss, len(extras))(*map(jnp.asarray, (both, labels, masks, *extras)))
    above, below = np.split(np.asarray(values), 2)
    return ((above - below) / (2 * step)).reshape(features.shape)


def check_gradient(loss, features, labels=None, extras=()):
    """The value; its gradient is that of finite differences, of a batch with garbage, and in float32 up to rounding."""
    labels = np.zeros(len(features), int) if labels is None else labels
    expected = difference_quotients(loss, features, labels, extras)
    assert np.abs(expected).max() > 1e-3
    value, gradient = evaluate(loss, features, labels, extras)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    arrays = _cast((features, labels, np.ones(len(features), bool), *extras), np.float32)
    value32, gradient32 = compiled_gradient(loss)(*arrays)
    np.testing.assert_allclose(value32, value, rtol=1e-4)
    np.testing.assert_allclose(gradient32, gradient, rtol=1e-3, atol=1e-4 * np.abs(gradient).max())
    return value


def check_degenerate(loss, dim=5, extras=()):
    """Value and gradient are finite, and of float32, on every kind of degenerate batch, under ``vmap``."""
    rows = degenerate_rows(dim)
    constant = np.where(np.arange(dim) == 1, 3.0, rows)
    two_equal = np.where(np.arange(6)[:, None] == 0, rows[1], rows)
    equal, zero = np.ones((6, dim)) * rows[:1], np.zeros((6, dim))
    cases = [
        (np.where(np.arange(6)[:, None] < count, kind, np.nan), labels, np.arange(6) < count)
        for kind in (rows, constant, two_equal, equal, zero, 1e-20 * rows, 1e-13 * rows, 1e4 * rows)
        for labels in (np.zeros(6, int), np.array([0, 1, 1, 0, 2, 2]), np.arange(6) % 3)
        for count in (0, 1, 2, 6)
    ]
    features, labels, masks = (np.stack(column) for column in zip(*cases, strict=True))
    compute = compiled_over_clients(compiled_gradient(loss), len(extras))
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):  # float32 also where float64 is the default
        values, gradients = compute(*_cast((features, labels, masks, *extras), np.float32))
    assert values.dtype == gradients.dtype == np.float32
    assert np.all(np.isfinite(values)), np.flatnonzero(~np.isfinite(values))
    assert np.all(np.isfinite(gradients)), np.unique(np.nonzero(~np.isfinite(gradients))[0])
    assert np.all(np.asarray(gradients)[~masks] == 0)


def degenerate_rows(dim):
    """The six ordinary rows from which the degenerate batches are made."""
    return np.random.default_rng(0).normal(size=(6, dim))


def _cast(arrays, dtype):
    """On the device, with floats of the given type."""
    arrays = map(np.asarray, arrays)
    return [jnp.asarray(x, dtype if x.dtype == np.float64 else None) for x in arrays]
