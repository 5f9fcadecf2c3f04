"""Vision transformers: sizes of the published ones, initial weights, options and wrong inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close, one_line
from tiny_networks import batch_of, compiled

from fedjax_collapse import Model, nn
from fedjax_collapse.core import masks
from fedjax_collapse.nn.interchange import torch_networks as pytorch_networks


@pytest.mark.parametrize(
    ("size", "patch", "image_shape", "backbone", "with_1000_classes"),
    [
        ("Ti", 16, (224, 224, 3), 5_524_416, 5_717_416),
        ("S", 16, (224, 224, 3), 21_665_664, 22_050_664),
        ("B", 16, (224, 224, 3), 85_798_656, 86_567_656),
        ("Ti", 4, (32, 32, 3), 5_360_832, 5_553_832),
        ("mini", 4, (32, 32, 1), 1_200_512, 1_329_512),
        ("micro", 7, (28, 28, 1), 204_416, 269_416),
        ("micro", 4, (28, 28, 1), 204_416, 269_416),
    ],
)
def test_numbers_of_parameters(size, patch, image_shape, backbone, with_1000_classes):
    params = Model(nn.ViT(1000, size=size, patch=patch), image_shape).variable_shapes().params
    counts = {name: sum(leaf.size for leaf in jax.tree.leaves(layer)) for name, layer in params.items()}
    assert sum(counts.values()) == with_1000_classes
    assert sum(counts.values()) - counts["Dense_0"] == backbone


@pytest.fixture(scope="module")
def variables():
    return jax.device_get(Model(nn.ViT(4, size="micro", depth=1), (8, 8, 3)).init(jax.random.key(0)))


def test_initialisation(variables):
    """Normal of 0.02 and biases of 0; PyTorch's default in the patches and in the classifier."""
    found = masks.by_path(variables.params)
    for path, leaf in found.items():
        if path.endswith("scale"):
            assert (leaf == 1).all()
        elif path.startswith(("patches", "Dense_0")):
            bound = 1 / np.sqrt(48 if path.startswith("patches") else 64)
            assert 0.9 * bound * (leaf.size > 40) <= np.abs(leaf).max() <= bound
        elif path.endswith("bias"):
            assert not leaf.any()
        elif path != "token":
            assert np.std(leaf) == pytest.approx(0.02, rel=0.1) and np.abs(leaf).max() > 0.05
    assert 0 < np.abs(found["token"]).max() < 1e-5


def test_forward_and_gradients_equal_torchs(float64):
    """Of images that are not square, one channel and two blocks, with the other value of each option."""
    options = dict(width=12, depth=2, heads=3, mlp_width=20, pool="mean", epsilon=1e-3, gelu="tanh")
    model = Model(nn.ViT(4, **options), (8, 12, 1))
    rng, batch = np.random.default_rng(0), batch_of((8, 12, 1))
    variables = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape)), model.variable_shapes())
    weights = jnp.asarray(rng.normal(size=(6, 4)) * np.asarray(batch.mask)[:, None])

    def total(variables):
        outputs, _ = model.apply(variables, batch, train=True)
        return jnp.sum(weights * outputs.logits), outputs

    (_, outputs), gradient = compiled(jax.value_and_grad(total, has_aux=True), variables)(variables)
    network = pytorch_networks.build("vit", 4, (8, 12, 1), **options).double()
    pytorch_networks.load(network, pytorch_networks.arrays_in_order(model, variables))
    images = torch.tensor(np.array(batch.inputs)[np.array(batch.mask)]).permute(0, 3, 1, 2)
    features = network.represent(images)
    logits = network.head(features)
    (torch.tensor(np.array(weights)[np.array(batch.mask)]) * logits).sum().backward()
    assert_close(outputs.features[batch.mask], features.detach().numpy(), 1e-12)
    assert_close(outputs.logits[batch.mask], logits.detach().numpy(), 1e-12)
    expected = [parameter.grad.numpy() for parameter in network.parameters()]
    expected = [np.moveaxis(array, (0, 1), (-1, -2)) if array.ndim > 1 else array for array in expected]
    found = pytorch_networks.arrays_in_order(model, gradient)
    assert_close(found, expected, 1e-10)
    assert sum(np.abs(array).max() > 1e-3 for array in found) >= len(found) - 2  # keys' biases have no gradient


@pytest.mark.parametrize(
    ("options", "size", "message"),
    [
        (dict(size="L"), 8, "ViT: size 'L': expected one of micro, mini, Ti, S, B"),
        (dict(pool="max"), 8, "ViT: pool 'max': expected one of token, mean"),
        (dict(gelu="relu"), 8, "ViT: gelu 'relu': expected one of erf, tanh"),
        (dict(heads=3), 8, "ViT: width 128 with 3 heads, expected a multiple of the number of heads"),
        (dict(patch=16), 8, "ViT: images of 8x8 pixels are too small, expected at least 16x16"),
        (dict(patch=3), 8, "images of 8x8 pixels: expected multiples of the patches' 3 pixels"),
        (dict(dtype="float8"), 8, "dtype 'float8': expected one of None, float32, bfloat16"),
    ],
)
def test_wrong_options(options, size, message):
    with one_line(message):
        Model(nn.ViT(3, **options), (size, size, 3)).variable_shapes()
