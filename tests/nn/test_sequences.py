"""Networks of sequences: sizes of the published ones, initial weights, PyTorch's values, padding, wrong inputs,
and batches of the tokens that targets need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, cases, check
from reference.tokens import TorchLSTM, TorchTransformer
from tiny_networks import compiled

from fedjax_collapse import Batch, Model, nn
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples
from fedjax_collapse.data.batches import count_tokens, cut_tokens
from fedjax_collapse.nn.networks.pfl_transformer import sinusoids
from fedjax_collapse.nn.places import rows_at, spread
from fedjax_collapse.nn.sequences import recur

IDS, LENGTH, ROWS = 9, 5, 4


def model_of(network, length=LENGTH, **options):
    return Model(network, (length,), input_dtype="int32", **options)


@cases(
    (nn.StackOverflowLSTM(10_004), 20, 4_050_748, 20, 96),
    (nn.StackOverflowLSTM(10_004, tied=True), 20, 3_080_360, 20, 96),
    (nn.ShakespeareLSTM(90), 80, 820_522, 80, 256),
    (nn.ShakespeareLSTM(80, predicts="last"), 80, 817_872, 1, 256),
    (nn.PflTransformer(10_004), 20, 1_962_912, 20, 96),
)
def test_numbers_of_parameters(network, length, count, rows, features):
    model = model_of(network, length)
    variables = model.variable_shapes()
    outputs = model.output_shapes(variables)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == count
    assert (outputs.features.shape, outputs.logits.shape) == ((rows, features), (rows, network.num_classes))


def test_a_linear_network_is_the_one_of_tag_prediction():
    variables = Model(nn.MLP(500, hidden=()), (10_000,)).variable_shapes()
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 5_000_500


def test_initial_weights_are_those_of_keras():
    params = jax.device_get(model_of(nn.ShakespeareLSTM(90, hidden=32)).init(jax.random.key(0))).params
    forget, rest = params["LSTM_0"]["bias"][32:64], np.delete(params["LSTM_0"]["bias"], slice(32, 64))
    assert (forget == 1).all() and not rest.any() and not params["Dense_0"]["bias"].any()
    recurrent = params["LSTM_1"]["recurrent"]
    assert_close(recurrent @ recurrent.T, np.eye(32), 1e-5)
    assert np.abs(params["Embedding_0"]["table"]).max() == pytest.approx(0.05, rel=0.05)
    assert np.std(params["LSTM_1"]["kernel"]) == pytest.approx(np.sqrt(2 / 32), rel=0.05)
    assert np.abs(params["Dense_0"]["kernel"]).max() == pytest.approx(np.sqrt(6 / (32 + 90)), rel=0.05)
    kernel = model_of(nn.StackOverflowLSTM(90, hidden=32)).init(jax.random.key(0)).params["LSTM_0"]["kernel"]
    assert np.abs(kernel).max() == pytest.approx(np.sqrt(6 / (96 + 4 * 32)), rel=0.05)


def test_no_step_of_an_lstm_multiplies_by_a_transposed_kernel():
    gradient = jax.jit(jax.grad(lambda recurrent, inputs: jnp.sum(recur(inputs, recurrent))))
    program = gradient.lower(jnp.ones((6, 24)), jnp.ones((3, 5, 24))).compile().as_text()
    assert " dot(" in program and "rhs_contracting_dims={1}" not in program


def test_sinusoids():
    assert_close(sinusoids(3, 4)[2], [np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)], 1e-6)


NETWORKS = {  # and the options of PyTorch's
    "stackoverflow": (nn.StackOverflowLSTM(IDS, embedding=4, hidden=6, layers=2), dict(layers=2, has_dense=True)),
    "tied": (nn.StackOverflowLSTM(IDS, embedding=4, hidden=6, tied=True), dict(layers=1, has_dense=True, is_tied=True)),
    "shakespeare": (nn.ShakespeareLSTM(IDS, hidden=6), dict(layers=2, has_dense=False)),
    "leaf": (nn.ShakespeareLSTM(IDS, hidden=6, predicts="last"), dict(layers=2, has_dense=False, only_last=True)),
    "transformer": (nn.PflTransformer(IDS, embedding=8, depth=2, heads=2, mlp_width=12), dict(heads=2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_and_gradients_equal_torchs(float64, name):
    import torch

    network, options = NETWORKS[name]
    model, rng = model_of(network), np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: jnp.asarray(0.4 * rng.normal(size=leaf.shape)), model.variable_shapes())
    tokens = rng.integers(0, IDS, (ROWS, LENGTH))
    rows = len(model.initial_shapes().logits) * ROWS
    weights = rng.normal(size=(rows, IDS))
    batch = Batch(jnp.asarray(tokens), jnp.zeros(rows, int), jnp.ones(rows, bool))

    def total(variables):
        outputs, _ = model.apply(variables, batch, train=True)
        return jnp.sum(weights * outputs.logits), outputs

    (_, outputs), gradient = compiled(jax.value_and_grad(total, has_aux=True), variables)(variables)
    twin = (TorchTransformer if name == "transformer" else TorchLSTM).of(variables, **options)
    features, logits = twin(torch.tensor(tokens))
    (torch.tensor(weights) * logits).sum().backward()
    assert_close(outputs.features, features.detach().numpy(), 1e-12)
    assert_close(outputs.logits, logits.detach().numpy(), 1e-12)
    assert_close(gradient, twin.dump(lambda tensor: tensor.grad), 1e-10)


def test_the_head_of_tied_networks_is_the_embedding():
    for network, layer in ((NETWORKS["tied"][0], "Embedding_0"), (NETWORKS["stackoverflow"][0], "Dense_2")):
        mask = masks.by_path(model_of(network).mask("head").params)
        assert {path.split("/")[0] for path, is_head in mask.items() if is_head} == {layer}


def test_levels_are_of_every_token():
    model = model_of(NETWORKS["transformer"][0])
    levels = model.output_shapes(model.variable_shapes(), levels=True).levels
    assert [level.shape for level in levels] == [(LENGTH, 8), (LENGTH, 8)]


def test_dropout_needs_a_key_and_training():
    model = model_of(NETWORKS["transformer"][0])
    variables = model.init(jax.random.key(0))
    batch = Batch(jnp.ones((1, LENGTH), jnp.int32), jnp.zeros(LENGTH, int), jnp.ones(LENGTH, bool))

    @jax.jit
    def logits(key):
        modes = (True, None), (True, key), (False, key)
        return [model.apply(variables, batch, *mode)[0].logits for mode in modes]

    plain, with_key, evaluated = logits(jax.random.key(1))
    assert np.array_equal(plain, evaluated) and not np.allclose(plain, with_key)


@cases(
    (nn.StackOverflowLSTM(9), float, "StackOverflowLSTM: its inputs are float32 of 2 axes, expected ids of tokens"),
    (nn.StackOverflowLSTM(9, projector="feduv"), int, "projector feduv has BatchNorm, which networks of tokens"),
    (nn.StackOverflowLSTM(9, tied=True, vocabulary=7), int, "tied, with 7 ids and 9 classes"),
    (nn.StackOverflowLSTM(9, tied=True, head=nn.heads.ETF), int, "tied logits have no head of their own"),
    (nn.StackOverflowLSTM(9, hidden=0), int, "hidden 0 is too small"),
    (nn.PflTransformer(9, heads=7), int, "embedding 96 with 7 heads, expected an even multiple"),
    (nn.ShakespeareLSTM(9, predicts="first"), int, "predicts 'first': expected one of every, last"),
)
def test_wrong_options(network, dtype, message):
    check(message, Model(network, (4,), input_dtype=dtype).variable_shapes)


PLACES = jnp.array([4, 0, 3, 6, 6, 6])  # of six tokens; three of the places are padding


def test_rows_go_and_come_back():
    rows = jax.random.normal(jax.random.key(0), (6, 2))
    chosen = rows_at(rows, PLACES)
    np.testing.assert_array_equal(chosen, [*np.asarray(rows)[[4, 0, 3]], *np.zeros((3, 2))])
    back = spread(chosen, PLACES, 6)
    np.testing.assert_array_equal(back, np.where(np.isin(np.arange(6), PLACES)[:, None], rows, 0))
    assert rows_at(rows, None) is rows and spread(rows, None, 6) is rows
    for function in (rows_at, lambda rows, places: spread(rows, places, 6)):
        matrix = jax.jacrev(function)(rows, PLACES).reshape(12, 12)
        np.testing.assert_array_equal(matrix @ rows.ravel(), function(rows, PLACES).ravel())  # both are linear


def test_only_needed_tokens_are_kept():
    mask = jnp.array([[False, True, False], [False, False, False], [True, False, True]])
    batch = Batch(jnp.arange(9).reshape(3, 3), jnp.arange(10, 19), mask.reshape(-1))
    labels, rows = jnp.where(mask, 1, 0), jnp.arange(3)
    examples = Examples(batch.inputs, labels, None, None, pad=jnp.array(0))
    assert count_tokens(examples, rows, jnp.ones(3, bool)) == 5 and count_tokens(examples, rows, rows < 2) == 2
    found = cut_tokens(batch, 6)
    assert found.places.tolist() == [0, 1, 6, 7, 8, 9]  # 0 and 7 have no target, but a later token has
    assert found.labels.tolist() == [10, 11, 16, 17, 18, 0]
    assert found.mask.tolist() == [False, True, True, False, True, False]
    assert found.inputs is batch.inputs
