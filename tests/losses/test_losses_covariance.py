"""DeCov, Structured-DeCov and VICReg's terms: test vectors, the definitions by NumPy, and how they are related."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from loss_checks import H, Z, bound, compiled, evaluate, off_diagonal, pad_batch

from fedjax_collapse.losses import decov, structured_decov, vicreg_covariance, vicreg_variance


def test_vectors_of_decov():
    def value(function, *arguments):
        return evaluate(bound(function, *arguments), H)[0]

    assert evaluate(bound(decov), Z)[0] == pytest.approx(1.8125, abs=1e-12)
    assert value(structured_decov, 2) == pytest.approx(2.0625, abs=1e-12)
    assert value(decov) == pytest.approx(2.3125, abs=1e-12)
    assert value(structured_decov, 2, 1.0) == pytest.approx(2.0625 - 0.25, abs=1e-12)
    assert value(structured_decov, 1, -1.0) == pytest.approx(2.3125, abs=1e-12)
    assert value(structured_decov, 1) == pytest.approx(0, abs=1e-12)
    assert value(structured_decov, 4) == pytest.approx(2.3125, abs=1e-12)


def everything(features, mask):
    dim = features.shape[1]
    return {
        "decov": decov(features, mask),
        "between": structured_decov(features, mask, dim // 2),
        "minus within": structured_decov(features, mask, dim // 2, 0.3),
        "one by one": structured_decov(features, mask, dim),
        "covariance": vicreg_covariance(features, mask),
        "variance": vicreg_variance(features, mask, 1.5, 0.01),
    }


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.sampled_from([(2, 8), (5, 12), (20, 4)]), st.integers(0, 1000))
def test_definitions(shape, seed):
    features = np.random.default_rng(seed).normal(size=shape) * np.linspace(0.5, 2, shape[1])
    dim = shape[1]
    biased, unbiased = (np.cov(features, rowvar=False, ddof=ddof) for ddof in (0, 1))
    groups = np.arange(dim) // 2  # pairs of features
    decorrelation = 0.5 * np.sum(off_diagonal(biased) ** 2)
    between = 0.5 * np.sum(biased[groups[:, None] != groups[None]] ** 2)
    expected = {
        "decov": decorrelation,
        "between": between,
        "minus within": between - 0.3 * (decorrelation - between),
        "one by one": decorrelation,
        "covariance": np.sum(off_diagonal(unbiased) ** 2) / dim,
        "variance": np.mean(np.maximum(1.5 - np.sqrt(np.diag(unbiased) + 0.01), 0)),
    }
    padded, _, mask = pad_batch(features, np.zeros(len(features)))
    with jax.enable_x64(True):
        values = compiled(everything)(jnp.asarray(padded), jnp.asarray(mask))
    assert jax.tree.map(float, values) == pytest.approx(expected, abs=1e-12)


def test_default_of_sixteen_groups():
    features = jnp.asarray(np.random.default_rng(0).normal(size=(9, 32)))
    values = [structured_decov(features, jnp.ones(9, bool), *groups) for groups in [(), (16,), (8,)]]
    assert values[0] == values[1] != values[2]


def test_published_defaults_of_vicreg():
    loss = bound(vicreg_variance)
    expected = np.mean(np.maximum(1 - np.sqrt(Z.var(0, ddof=1) / 100 + 1e-4), 0))
    assert evaluate(loss, Z / 10)[0] == pytest.approx(expected, rel=1e-12)
    assert evaluate(loss, 10 * Z)[0] == 0


def test_one_row_has_no_loss():
    assert not any(map(float, everything(jnp.asarray(Z), jnp.arange(4) < 1).values()))


def test_rounding_never_makes_a_penalty_negative():
    features = np.zeros((4, 40), np.float32)
    features[:, 3] = [100.1, 0.3, -7.7, 55.5]  # a covariance with one entry: nothing to decorrelate
    for function in (decov, vicreg_covariance, lambda z, m: structured_decov(z, m, 4)):
        value, gradient = jax.value_and_grad(function)(jnp.asarray(features), jnp.ones(4, bool))
        assert 0 <= value < 1 and np.all(np.isfinite(gradient))
