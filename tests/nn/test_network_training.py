"""Every network in training: compared with PyTorch, with padding rows, and in a federated round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_networks
import torch
from conftest import assert_close, assert_same_bits, cases, long_where
from tiny_networks import KINDS, NUM_CLASSES, TINY, compiled, initialize, least_model, tiny_model

from fedjax_collapse import FedAvg, FedDecorr, Federation, LocalTraining, engine
from fedjax_collapse.engine.cohort import no_models
from fedjax_collapse.engine.rounds import _run_round
from fedjax_collapse.nn.interchange import torch_layers as pytorch_layers
from fedjax_collapse.nn.interchange import torch_networks as pytorch_networks

pytestmark = pytest.mark.slow


def torch_step(model, name, options, arrays, batch):
    """Returns the same as ``training_step``, by PyTorch, from only the true rows."""
    network = pytorch_networks.build(name, NUM_CLASSES, model.input_shape, **options).double()
    pytorch_networks.load(network, arrays).train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout | pytorch_layers.DropPath):  # there is no key
            module.eval()
    images, labels, mask = (torch.tensor(np.array(field)) for field in batch[:3])
    images, labels = images[mask].permute(0, 3, 1, 2), labels[mask].long()

    features = network.represent(images)
    logits = network.head(features)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    torch.nn.functional.cross_entropy(logits, labels).backward()
    optimizer.step()
    with torch.no_grad():
        later = network.eval().represent(images)
        outputs = [features, logits, later, network.head(later)]
    arrays = [tensor.detach().numpy() for tensor in pytorch_networks.tensors(network)]
    arrays = [np.moveaxis(array, (0, 1), (-1, -2)) if array.ndim > 1 else array for array in arrays]
    return [tensor.detach().numpy() for tensor in outputs], arrays


def assert_step_equals_torchs(model, name, options, variables):
    """Forward pass in training, gradient, running statistics, forward pass in evaluation, of the true rows."""
    batch, step = tiny_networks.batch_of(model.input_shape), functools.partial(tiny_networks.training_step, model)
    outputs, updated, later = compiled(step, variables, batch)(variables, batch)
    arrays = pytorch_networks.arrays_in_order(model, variables)
    expected_outputs, expected = torch_step(model, name, options, arrays, batch)
    found = [field[batch.mask] for of in (outputs, later) for field in (of.features, of.logits)]
    assert_close(found, expected_outputs, 1e-9)
    assert_close(pytorch_networks.arrays_in_order(model, updated), expected, 1e-9)
    changes = [np.abs(new - old).max() for new, old in zip(expected, arrays, strict=True)]
    assert sum(change > 1e-5 for change in changes) > 0.8 * len(changes)  # so that the tolerance above is a strict one


FOR_A_GPU = [(name, "product+xla+fused_norm") for name in ("mobilenet_v2", "resnet18")]


@cases(*((name, "xla") for name in KINDS), *FOR_A_GPU)
def test_a_step_equals_torchs(name, lowering, float64):
    """With XLA's convolutions, which compile fast; ``test_convolution.py`` has the others equal to them. And with
    BatchNorm and ReLU together, as for a GPU.
    """
    model = tiny_model(name, **{} if name in ("mlp", "vit") else dict(lowering=lowering))
    assert_step_equals_torchs(model, name, TINY[name].options, initialize(tiny_model(name)))


@pytest.fixture(scope="module")
def federation_of():
    """Three clients with 5, 9 and 12 images of four classes, of a size."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (26, 64, 64, 3), np.uint8), rng.integers(0, NUM_CLASSES, 26)

    def federation(size):
        images = pixels[:, :size, :size]
        return Federation.from_arrays(images, labels, np.split(np.arange(26), [5, 14]), images, labels, 128.0, 64.0)

    return federation


def lowered_round(federation, model, variables):
    """One round of FedAvg with FedDecorr, not yet compiled, and its arguments."""
    training = LocalTraining(epochs=1, batch_size=5, learning_rate=0.05, momentum=0.9)
    algorithm = jax.tree.map(jnp.asarray, FedAvg(training, {"feddecorr": FedDecorr(variant="official")}))
    state = engine.init(algorithm, model, variables, 3, jax.random.key(0))
    rounds = engine.RoundSpec(model, engine.Layout(engine.Vectorized(), cohort_size=3))
    models = no_models(rounds, algorithm, state.server)
    arguments = (algorithm, state, models, engine.Assignment(federation.ownership), federation.train)
    return jax.jit(_run_round, static_argnums=0).lower(rounds, *arguments), arguments


@pytest.mark.parametrize("name", long_where(tiny_networks.LARGE, KINDS))
def test_a_federated_round(federation_of, name):
    """Finite, away from the start, without one convolution of XLA's, which are slow with a weight per client.

    And bit for bit the same with other images in the padding rows.
    """
    model = least_model(name)
    variables = jax.device_get(initialize(model))
    lowered, arguments = lowered_round(federation_of(TINY[name].size), model, variables)
    assert "stablehlo.convolution" not in lowered.as_text()
    run = lowered.compile(compiler_options=tiny_networks.FAST_COMPILATION)
    state, record, _ = run(*arguments)
    for before, after in zip(jax.tree.leaves(variables), jax.tree.leaves(state.server.variables), strict=True):
        assert np.isfinite(after).all() and not np.array_equal(before, after)
    assert np.isfinite(record.metrics["feddecorr/correlation"]).all()

    *others, data, examples = arguments
    ownership = data.ownership
    is_padding = np.arange(ownership.rows.shape[1]) >= ownership.sizes[:, None]
    other_rows = jnp.where(is_padding, 25 - ownership.rows, ownership.rows)
    assert is_padding.any()
    again, _, _ = run(*others, data._replace(ownership=ownership._replace(rows=other_rows)), examples)
    assert_same_bits(state.server, again.server)


def test_a_round_with_xlas_convolutions_is_detected(federation_of):
    model = least_model("resnet18", lowering="xla")
    assert "stablehlo.convolution" in lowered_round(federation_of(32), model, initialize(model))[0].as_text()
