"""Layers against XLA's convolution and PyTorch's BatchNorm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_collapse import Model, UserError, nn
from fedjax_collapse.nn.convolution import convolve
from fedjax_collapse.nn.layers import BatchNorm, Conv, max_pool
from fedjax_collapse.records import Batch


def compare_with_xla(lowering, size, stride, padding, extent, channels, clients):
    rng = np.random.default_rng(0)
    lead = () if clients is None else (clients,)
    images = jnp.asarray(rng.normal(size=(*lead, 2, *extent, channels[0])), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*lead, size, size, *channels)), jnp.float32)

    def outputs_and_gradients(lowering):
        def one(images, kernel):
            outputs, pull = jax.vjp(lambda i, k: convolve(i, k, stride, padding, lowering), images, kernel)
            return outputs, pull(jnp.cos(jnp.arange(outputs.size, dtype=jnp.float32)).reshape(outputs.shape))

        return (one if clients is None else jax.vmap(one))(images, kernel)

    assert_close(outputs_and_gradients(lowering), outputs_and_gradients("xla"), 1e-5)


@settings(max_examples=8, deadline=None)
@given(
    size=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    extent=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    clients=st.sampled_from([None, 2]),
)
def test_patches_equal_xla_in_value_and_gradient(size, stride, padding, extent, channels, clients):
    compare_with_xla("patches", size, stride, min(padding, size - 1), extent, channels, clients)


@settings(max_examples=8, deadline=None)
@given(
    padding=st.integers(0, 2),
    extent=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    clients=st.sampled_from([None, 2]),
)
def test_winograd_equals_xla_in_value_and_gradient(padding, extent, channels, clients):
    compare_with_xla("winograd", 3, 1, padding, extent, channels, clients)


def test_auto_uses_winograd_for_wide_layers_only():
    """Its matrix products are recognised by their 16 points."""

    def program(channels, size):
        images, kernel = jnp.zeros((2, 8, 8, channels)), jnp.zeros((size, size, channels, 32))
        return str(jax.make_jaxpr(lambda i, k: convolve(i, k, 1, 1))(images, kernel))

    assert "f32[16,32,16]" in program(16, 3)
    assert "f32[16," not in program(15, 3) and "f32[16," not in program(16, 5)


def test_unknown_lowering():
    with pytest.raises(UserError, match="lowering 'fft': expected one of auto, patches, winograd, xla"):
        Conv(3, lowering="fft").init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    with pytest.raises(UserError, match="needs kernel size 3, stride 1"):
        Conv(3, stride=2, lowering="winograd").init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))


def test_max_pool_equals_torch():
    images = np.random.default_rng(0).normal(size=(2, 7, 5, 3)).astype(np.float32)
    expected = torch.nn.functional.max_pool2d(torch.tensor(images).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    np.testing.assert_array_equal(max_pool(jnp.asarray(images)), expected.numpy())


@pytest.mark.parametrize("shape", [(5, 3, 4, 6), (5, 6)])
def test_batch_norm_equals_torch(shape):
    rng = np.random.default_rng(0)
    norm = BatchNorm()
    mask = jnp.ones(5, bool)
    variables = norm.init(jax.random.key(0), jnp.zeros(shape), mask, train=False)
    reference = torch.nn.BatchNorm2d(6) if len(shape) == 4 else torch.nn.BatchNorm1d(6)
    move = (0, 3, 1, 2) if len(shape) == 4 else (0, 1)
    for train in (True, True, False):
        inputs = rng.normal(2, 3, size=shape).astype(np.float32)
        reference.train(train)
        expected = reference(torch.tensor(inputs).permute(*move)).permute(*np.argsort(move)).detach().numpy()
        outputs, stats = norm.apply(variables, jnp.asarray(inputs), mask, train=train, mutable=["batch_stats"])
        variables = {**variables, **stats}
        np.testing.assert_allclose(outputs, expected, atol=2e-6)
        stats = variables["batch_stats"]
        np.testing.assert_allclose(stats["mean"], reference.running_mean.numpy(), rtol=1e-6)
        np.testing.assert_allclose(stats["var"], reference.running_var.numpy(), rtol=1e-6)


def test_initialisation_is_torchs():
    """Uniform in +-1/sqrt(fan_in), weights and biases."""
    variables = Conv(64, 3).init(jax.random.key(0), jnp.zeros((1, 8, 8, 7)))["params"]
    for leaf in jax.tree.leaves(variables):
        assert 0.9 / np.sqrt(63) < np.abs(leaf).max() <= 1 / np.sqrt(63)
    torch_std = torch.nn.Conv2d(7, 64, 3).weight.std().item()
    assert float(variables["kernel"].std()) == pytest.approx(torch_std, rel=0.1)


@pytest.mark.parametrize(
    "module", [nn.SmallCNN(3, channels=(4, 8)), nn.SmallCNN(3, (4, 8), norm="none"), nn.MLP(3, (5,))]
)
def test_padding_rows_change_nothing(module):
    """Other garbage in masked rows: the same bits everywhere, running statistics included."""
    model = Model(module, (8, 8, 2))
    variables = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, 8, 8, 2)).astype(np.float32)
    mask = np.array([1, 1, 0, 1, 1, 0], bool)
    outcomes = []
    for garbage in (0.0, 1e6):
        filled = jnp.asarray(np.where(mask[:, None, None, None], images, garbage))
        outputs, stats = jax.jit(model.apply, static_argnums=2)(variables, Batch(filled, jnp.zeros(6, int), mask), True)
        outcomes.append((jax.tree.map(lambda leaf: leaf[mask], outputs), stats))
    assert_same_bits(*outcomes)
