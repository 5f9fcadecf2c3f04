"""Layers against PyTorch's."""

import functools

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits, cases, one_line
from tiny_networks import derivatives

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.layers import GroupNorm, max_pool
from fedjax_collapse.nn.lowerings.sums import add_bias, mean_pixels, sum_rows
from fedjax_collapse.nn.network import LayerOptions
from fedjax_collapse.nn.normalization import normalize_batch, normalize_fused, normalize_groups


def to_torch(images):
    return torch.tensor(np.asarray(images)).permute(0, 3, 1, 2)


def compare_with_torch(function, reference, images, tolerance):
    """Value, and gradient of a sum with other weights for each output."""

    @jax.jit
    def both(images):
        outputs, pull = jax.vjp(function, images)
        cotangent = jnp.cos(jnp.arange(outputs.size, dtype=jnp.float32)).reshape(outputs.shape)
        return outputs, pull(cotangent)[0], cotangent

    *ours, cotangent = both(jnp.asarray(images))
    inputs = to_torch(images).requires_grad_()
    expected = reference(inputs)
    expected.backward(to_torch(cotangent))
    assert_close(ours, [t.detach().permute(0, 2, 3, 1).numpy() for t in (expected, inputs.grad)], tolerance)


@pytest.mark.parametrize(
    ("size", "stride", "extent"),
    [(2, None, (7, 5)), (3, 2, (7, 6)), (3, 1, (4, 5)), (2, 3, (6, 9))],
)
@pytest.mark.parametrize("target", [Target(), Target("tpu")])
def test_max_pool_equals_torch(size, stride, extent, target):
    """Among equal values the first one in the window gets the gradient."""
    images = np.random.default_rng(0).integers(-3, 3, size=(2, *extent, 3)).astype(np.float32)
    compare_with_torch(
        lambda x: max_pool(x, size, stride, target),
        lambda x: torch.nn.functional.max_pool2d(x, size, stride),
        images,
        0.0 if stride is None else 1e-6,
    )


@pytest.mark.parametrize("target", [Target(), Target("tpu")])
def test_max_pool_passes_nan_on(target):
    """Wherever it is in the window, so that a diverged client is seen."""
    images = [jnp.zeros((1, 2, 2, 1)).at[0, i, j, 0].set(jnp.nan) for i in (0, 1) for j in (0, 1)]
    assert all(np.isnan(max_pool(image, target=target)) for image in images)


@pytest.mark.parametrize("target", [Target(), Target("tpu")])
def test_too_small_for_a_pool(target):
    with one_line("images of 2x5 pixels are too small for 3x3 pooling: it needs at least 3; use"):
        max_pool(jnp.ones((1, 2, 5, 1)), 3, target=target)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("shape", [(6, 3, 2, 5), (6, 5)])
def test_gradient_of_batch_norm(shape, platform):
    """Gradients of outputs and both moments equal automatic differentiation over only the true rows."""
    inputs, weights = jax.random.normal(jax.random.key(0), (2, *shape))
    scale, bias, *others = jax.random.normal(jax.random.key(1), (4, 5))
    true = np.array([0, 2, 3, 5])
    mask = jnp.zeros(6, bool).at[true].set(True)
    axes = tuple(range(len(shape) - 1))

    def plain(inputs, mask, scale, bias, epsilon):
        mean, variance = inputs.mean(axes), inputs.var(axes)
        return (inputs - mean) / jnp.sqrt(variance + epsilon) * scale + bias, mean, variance

    def gradients(function, rows, mask):
        def loss(inputs, scale, bias):
            outputs, *moments = function(inputs, mask, scale, bias, 1e-3)
            return sum(jnp.sum(a * b) for a, b in zip((outputs, *moments), (weights[rows], *others), strict=True))

        return jax.jit(jax.grad(loss, (0, 1, 2)))(inputs[rows], scale, bias)

    weights = weights * mask.reshape(-1, *[1] * (len(shape) - 1))
    ours, expected = (
        gradients(lambda *all: normalize_batch(*all, Target(platform)), np.arange(6), mask),
        gradients(plain, true, mask[true]),
    )
    assert not np.any(ours[0][np.array([1, 4])])
    assert_close((ours[0][true], *ours[1:]), expected, 1e-5)


@cases((True, (6, 3, 2, 5)), (False, (6, 5)))
def test_fused_batch_norm_equals_the_other(relu, shape, float64):
    """Outputs, moments, gradients and gradients of gradients, over clients with masks of their own."""
    rng = np.random.default_rng(0)
    inputs, weights = rng.normal(1, 2, size=(2, 3, *shape))
    scale, bias, *others, shift = rng.normal(size=(5, 3, 5))
    masks = np.array([[1] * 6, [1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0]], bool)
    weights = weights * masks.reshape(3, 6, *[1] * (len(shape) - 1))  # as a loss ignores padding rows

    def plain(inputs, mask, scale, bias, shift):
        outputs, *moments = normalize_batch(inputs, mask, scale, bias, 1e-3, Target("gpu"))
        return jax.nn.relu(outputs) if relu else outputs, *moments

    def fused(*arguments):
        return normalize_fused(*arguments, 1e-3, relu)

    def derived(function):
        def one(inputs, mask, scale, bias, shift, *weights):
            def loss(*trained):
                outputs = function(trained[0], mask, *trained[1:], shift)
                return sum(jnp.sum(a * b) for a, b in zip(outputs, weights, strict=True))

            def slopes(*trained):
                return jax.grad(loss, (0, 1, 2))(*trained)

            def roughness(*trained):
                return sum(jnp.sum(jnp.sin(slope)) for slope in slopes(*trained))

            trained = inputs, scale, bias
            outputs, *moments = function(inputs, mask, scale, bias, shift)
            rows = mask.reshape(-1, *[1] * (inputs.ndim - 1))
            return jnp.where(rows, outputs, 0), moments, slopes(*trained), jax.grad(roughness, (0, 1, 2))(*trained)

        return jax.jit(jax.vmap(one))(inputs, masks, scale, bias, shift, weights, *others)

    assert_close(derived(fused), derived(plain), 1e-12)


@cases(("float32", 1e-5), ("bfloat16", 2e-2))
def test_fused_batch_norm_rounds_as_little(dtype, tolerance):
    """In 16 bits as well its sums are in 32; and a mean far from 0 costs nothing if the shift is near it."""
    values = np.random.default_rng(0).normal(300, 1, size=(64, 8, 8, 3))
    inputs, cotangent = jnp.asarray(values, dtype), jnp.asarray(np.cos(values), dtype)
    mask, scale, shift = jnp.ones(64, bool), jnp.ones(3), jnp.full(3, 299.0)
    fused = functools.partial(normalize_fused, mask=mask, scale=scale, bias=scale, shift=shift, epsilon=1e-5, relu=True)

    @jax.jit
    def computed(inputs, cotangent):
        values, pull = jax.vjp(fused, inputs)
        return *values, *pull((cotangent, jnp.zeros(3), jnp.zeros(3)))

    outputs, mean, variance, gradient = computed(inputs, cotangent)
    assert outputs.dtype == gradient.dtype == jnp.dtype(dtype) and mean.dtype == variance.dtype == jnp.float32
    with jax.enable_x64(True):
        exact = np.asarray(inputs, np.float64)
        expected, pull = jax.vjp(
            lambda i: jax.nn.relu(normalize_batch(i, mask, np.ones(3), np.ones(3), 1e-5, Target())[0]), exact
        )
        expected_gradient = pull(np.asarray(cotangent, np.float64))[0]
    assert_close((mean, variance), (exact.mean((0, 1, 2)), exact.var((0, 1, 2))), 3e-6)
    assert_close([np.asarray(a, np.float64) for a in (outputs, gradient)], [expected, expected_gradient], tolerance)


def test_padding_rows_change_nothing_in_fused_batch_norm():
    """Other garbage in masked rows: the same bits of all outputs and gradients, of each client."""
    rng = np.random.default_rng(0)
    inputs, cotangent = rng.normal(size=(2, 2, 6, 4, 4, 3)).astype(np.float32)
    mask = np.array([[1, 1, 0, 1, 1, 0], [0, 0, 1, 0, 0, 1]], bool)
    rows = mask.reshape(2, 6, 1, 1, 1)

    def one(inputs, mask, cotangent):
        def fused(inputs, *params):
            return normalize_fused(inputs, mask, *params, jnp.zeros(3), 1e-5, True)

        outputs, pull = jax.vjp(fused, inputs, *params)
        return outputs, pull((cotangent, jnp.ones(3), jnp.ones(3)))

    params = jnp.full(3, 1.5), jnp.full(3, 0.1)
    found = []
    for garbage in (0.0, 1e6):
        outputs, gradients = jax.jit(jax.vmap(one))(np.where(rows, inputs, garbage), mask, cotangent * rows)
        assert not np.any(np.where(rows, 0, gradients[0]))
        found.append((np.where(rows, outputs[0], 0), outputs[1:], gradients))
    assert_same_bits(*found)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("of", ["rows", "pixels", "bias"])
def test_sums_and_their_gradients(float64, of, platform):
    """As NumPy's, at first and second order, also of several clients."""
    target, images = Target(platform), np.random.default_rng(0).normal(size=(2, 3, 4, 5, 6))
    ours, plain = {
        "rows": (lambda x: sum_rows(x, target), lambda x: x.sum((0, 1, 2))),
        "pixels": (lambda x: mean_pixels(x, target), lambda x: x.mean((1, 2))),
        "bias": (lambda x: add_bias(x, x[0, 0, 0], target), lambda x: x + x[0, 0, 0]),
    }[of]

    found, expected = (
        jax.jit(jax.vmap(lambda x, function=function: derivatives(function, (0,), x)))(images)
        for function in (ours, plain)
    )
    assert_close(found, expected, 1e-12)


def test_sums_of_a_client_do_not_depend_on_others():
    """Bit for bit, one at a time and together."""
    values = np.random.default_rng(0).normal(size=(3, 777, 33)).astype(np.float32)
    together = jax.jit(jax.vmap(lambda x: sum_rows(2 * x, Target())))(values)
    alone = [jax.jit(lambda x: sum_rows(2 * x, Target()))(of_client) for of_client in values]
    assert_same_bits(together, np.stack(alone))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("shape", [(4, 28, 5, 6), (4, 3, 6), (4, 6)])
def test_gradient_of_group_norm(shape, platform, float64):
    """Of the outputs and of all arguments, at first and second order, as by automatic differentiation."""
    rng = np.random.default_rng(0)
    inputs, scale, bias = rng.normal(2, 3, shape), rng.normal(size=6), rng.normal(size=6)

    def plain(inputs, scale, bias):
        values = inputs.reshape(len(inputs), -1, 3, 2)
        mean, variance = (of((1, 3), keepdims=True) for of in (values.mean, values.var))
        return ((values - mean) / jnp.sqrt(variance + 1e-3)).reshape(inputs.shape) * scale + bias

    def ours(*arrays):
        return normalize_groups(*arrays, 3, 1e-3, Target(platform))

    both = jax.jit(lambda *arrays: [derivatives(function, (0, 1, 2), *arrays) for function in (ours, plain)])
    assert_close(*both(inputs, scale, bias), 1e-10)


def test_group_norm_equals_torch():
    images = np.random.default_rng(0).normal(2, 3, size=(2, 4, 5, 6)).astype(np.float32)
    scale, bias = jnp.linspace(1, 2, 6), jnp.linspace(-1, 1, 6)
    for groups in (1, 3):
        reference = torch.nn.GroupNorm(groups, 6)
        with torch.no_grad():
            reference.weight.copy_(torch.tensor(np.asarray(scale)))
            reference.bias.copy_(torch.tensor(np.asarray(bias)))
        variables = {"params": {"scale": scale, "bias": bias}}
        compare_with_torch(lambda x, g=groups, v=variables: GroupNorm(g).apply(v, x), reference, images, 5e-6)
    with one_line("GroupNorm of 6 channels: expected a divisor of them, not 4 groups"):
        GroupNorm(4).init(jax.random.key(0), jnp.asarray(images))


@cases(("batch", True), ("batch", False), ("group", True), ("none", True))
def test_relu_follows_every_normalisation(norm, train):
    class Layer(flax.linen.Module):
        relu: bool

        @flax.linen.compact
        def __call__(self, images, mask, train):
            layers = LayerOptions(norm, "auto", None, Target())
            return layers.conv_norm(images, 4, mask=mask, train=train, relu=self.relu)

    images, mask = jax.random.normal(jax.random.key(0), (3, 5, 5, 2)), jnp.ones(3, bool)

    def outputs(relu):
        return Layer(relu).init_with_output(jax.random.key(1), images, mask, train)[0]

    plain, rectified = jax.jit(lambda: (outputs(False), outputs(True)))()
    assert (plain < 0).any()
    np.testing.assert_array_equal(rectified, jax.nn.relu(plain))
