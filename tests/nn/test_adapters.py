"""Low-rank adapters: what they compute and how they start, by hand, and that their frozen base has no client axis."""

import dataclasses
import re
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits, cases, check, run_at_once
from tiny_networks import compiled, initialize, least_model

from experiments.benchmarks.compiling import programs
from fedjax_collapse import FedAvg, LocalTraining, Model, Phase, engine, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import TRAINED, Batch, Outputs
from fedjax_collapse.methods import FFALoRA, FlexLoRA
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.layers import Conv, Dense, PatchEmbedding

QUERY_VALUE = ("query", "value")
EVERY_LINEAR = ("query", "key", "value", "out", "mlp_1", "mlp_2")
ALL = LoRA(2, 2.0, layers=("all",))
TRAINING = LocalTraining(epochs=1, batch_size=8, learning_rate=0.05, momentum=0.9, freeze="base")


class One(flax.linen.Module):
    """One layer."""

    layer: Any

    @flax.linen.compact
    def __call__(self, inputs, mask, train):
        outputs = self.layer(inputs)
        return Outputs(outputs, outputs.reshape(len(inputs), -1))


def one(layer, shape, **options):
    return Model(One(layer), shape, adapters=LoRA(layers=("layer",), **options))


def batch_of(inputs):
    return Batch(jnp.asarray(inputs), jnp.zeros(len(inputs), int), jnp.ones(len(inputs), bool))


def drawn(model, seed=0):
    """Variables whose params are all random, except scales."""
    rng, shapes = np.random.default_rng(seed), masks.by_path(jax.device_get(model.init(jax.random.key(0))))
    leaves = {path: leaf if path.endswith("_scale") else rng.normal(size=leaf.shape) for path, leaf in shapes.items()}
    return masks.replace(model.variable_shapes(), leaves)


def windows(images, size, stride, padding):
    """[batch, places, size * size * channels]: what a convolution multiplies with its matrix."""
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = (range(0, length - size + 1, stride) for length in padded.shape[1:3])
    found = [padded[:, i : i + size, j : j + size].reshape(len(images), -1) for i in rows for j in columns]
    return np.stack(found, axis=1)


@pytest.mark.parametrize("rank_stabilized", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape", "window"),
    [
        (Dense(5), (7,), None),
        (PatchEmbedding(5, 2), (4, 6, 3), (2, 2, 0)),
        (Conv(5, 3, stride=2), (6, 4, 3), (3, 2, 1)),
        (Conv(5, 3, stride=2, lowering="patches"), (6, 4, 3), (3, 2, 1)),
    ],
    ids=["dense", "patches", "convolution", "convolution by patches"],
)
def test_outputs_by_hand(float64, layer, shape, window, rank_stabilized):
    """x W + s x a b, where x are the layer's inputs, or their windows."""
    model = one(layer, shape, rank=3, alpha=6.0, rank_stabilized=rank_stabilized)
    variables, inputs = drawn(model), np.random.default_rng(1).normal(size=(4, *shape))
    kernel, a, b, bias, scale = (
        np.asarray(variables.params["layer"][name]) for name in ("kernel", "lora_a", "lora_b", "bias", "lora_scale")
    )
    s = 6 / np.sqrt(3) if rank_stabilized else 2
    assert_close(scale, np.full(3, s), 1e-15)
    x = inputs if window is None else windows(inputs, *window)
    expected = x @ kernel.reshape(-1, 5) + s * (x @ a.reshape(-1, 3)) @ b + bias
    found = jax.jit(lambda batch: model.apply(variables, batch, train=True)[0].features)(batch_of(inputs))
    assert_close(found.reshape(expected.shape), expected, 1e-13)


@cases("mlp", "vit", "resnet18")
def test_a_network_starts_as_without_adapters(name):
    """Its params and outputs, bit for bit: b is 0."""
    plain = least_model(name, **(dict(lowering="xla") if name == "resnet18" else {}))
    adapting = Model(plain.module, plain.input_shape, adapters=LoRA(2, layers=("all",)))
    before, after = (jax.device_get(initialize(model)) for model in (plain, adapting))
    found = masks.by_path(after)
    assert_same_bits(masks.by_path(before), {path: found[path] for path in masks.by_path(before)})
    assert any(path.endswith("lora_b") for path in found)
    assert not any(leaf.any() for path, leaf in found.items() if path.endswith("lora_b"))
    batch = batch_of(np.random.default_rng(0).normal(size=(2, *plain.input_shape)).astype(np.float32))
    outputs = [
        compiled(lambda v, model=model: model.apply(v, batch, train=False)[0].logits, variables)(variables)
        for model, variables in ((plain, before), (adapting, after))
    ]
    assert_same_bits(*outputs)


def test_how_a_is_drawn():
    """As peft: uniform in +-1 / sqrt(in), with another draw for each layer, or normal with deviation 1 / r."""
    for init in ("uniform", "gaussian"):
        model = Model(nn.MLP(4, hidden=(50, 50)), (1, 1, 50), adapters=LoRA(4, layers=("all",), init=init))
        layers = model.init(jax.random.key(0)).params
        first, second = layers["Dense_0"]["lora_a"], layers["Dense_1"]["lora_a"]
        assert "lora_a" not in layers["Dense_2"]
        assert not np.allclose(first, second)
        expected = 0.25 if init == "gaussian" else 1 / np.sqrt(3 * 50)
        assert np.std(first) == pytest.approx(expected, rel=0.1)
        assert init == "gaussian" or 0.95 / np.sqrt(50) < np.abs(first).max() <= 1 / np.sqrt(50)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.MLP(4, hidden=(6,)), dict(rank=7, layers=("all",)), "rank 7: layer Dense_0 is 128 x 6, expected at most"),
        (nn.MLP(4, hidden=(6,)), dict(), "the network has no query, value, expected all, or some of Dense_0, Dense_1"),
        (nn.MLP(4, hidden=(6, 6)), dict(rank=2, layers=("all", "Dense_3")), "the network has no Dense_3, expected"),
        (nn.ViT(4, size="micro"), dict(layers=("block_9/*",)), "the network has no block_9"),
        (nn.EfficientNetB0(4, width_multiplier=0.25), dict(rank=1, layers=("all",)), "convolution in .* groups"),
    ],
    ids=["rank", "names", "one name", "pattern", "groups"],
)
def test_what_cannot_be_adapted_is_one_line(module, options, message):
    check(message, Model(module, (8, 8, 2), adapters=LoRA(**options)).variable_shapes)


@pytest.mark.parametrize("options", [dict(layers=()), dict(rank=0), dict(alpha=0.0), dict(dropout=1.0), dict(init="b")])
def test_wrong_options(options):
    check(f"^LoRA: {next(iter(options))} ", LoRA, **options)


def test_layers_are_named_by_patterns():
    model = Model(nn.ViT(4, size="micro", depth=2), (8, 8, 2), adapters=LoRA(2, layers=("block_*/query", "mlp_1")))
    found = {path.removesuffix("/lora_a") for path in masks.by_path(model.variable_shapes()) if path.endswith("lora_a")}
    assert found == {f"params/block_{i}/{name}" for i in (0, 1) for name in ("query", "mlp_1")}


def test_dropout_is_of_the_adapters_inputs_in_training():
    """Each is 0 or doubled; those of the kernel stay."""
    model = one(Dense(6, use_bias=False), (6,), rank=6, alpha=6.0, dropout=0.5)
    variables = drawn(model)
    variables.params["layer"].update(kernel=np.zeros((6, 6)), lora_a=np.eye(6), lora_b=np.eye(6))
    batch, key = batch_of(np.arange(1.0, 4801).reshape(800, 6)), jax.random.key(0)
    for train, own in ((False, key), (True, None)):
        assert_same_bits(model.apply(variables, batch, train, own)[0].features, batch.inputs)
    kept = np.asarray(model.apply(variables, batch, True, key)[0].features / batch.inputs)
    assert set(np.unique(kept)) == {0, 2} and abs(kept.mean() - 1) < 0.05
    variables.params["layer"].update(kernel=np.eye(6), lora_b=np.zeros((6, 6)))
    assert_same_bits(model.apply(variables, batch, True, key)[0].features, batch.inputs)


@cases((4, QUERY_VALUE, 36_864), (8, EVERY_LINEAR[:4], 147_456), (8, EVERY_LINEAR, 331_776))
def test_numbers_of_parameters(rank, layers, count):
    """Of a published vision transformer; nothing is computed."""
    model = Model(nn.ViT(10, size="Ti", patch=16), (224, 224, 3), adapters=LoRA(rank, layers=layers))
    assert sum(leaf.size for leaf in masks.select(model.mask("adapters"), model.variable_shapes()).values()) == count


WIDE = nn.ViT(10, width=92, depth=1, heads=2, mlp_width=101)
NETWORKS = {  # and the matrices of their layers, of which no other array has the shape
    "mlp": (nn.MLP(10, hidden=(97, 89)), ALL, [(64, 97), (97, 89)]),
    "vit": (WIDE, ALL, [(92, 92), (92, 101), (101, 92)]),
}
OPTIMIZERS = {"momentum": dict(momentum=0.9), "adam": dict(optimizer=jax.tree_util.Partial(optax.adam))}


def lowered_rounds(algorithm, model, num_clients):
    return engine.lower(*programs.rounds(algorithm, model, engine.Vectorized(), num_clients))


def shapes_in(program, pattern):
    return {tuple(sorted(map(int, re.findall(r"\d+", shape)))) for shape in re.findall(pattern, program.as_text())}


@pytest.mark.slow
@cases(("mlp", "adam"), ("vit", "momentum"))
def test_the_frozen_base_has_no_client_axis(name, optimizer):
    """No array of a compiled round is a matrix for each client, and what clients keep is smaller than the base.

    Without adapters both are found.
    """
    module, adapters, matrices = NETWORKS[name]
    training = LocalTraining(momentum_reset=False, batch_size=5, **OPTIMIZERS[optimizer])
    adapting = Model(module, (8, 8, 1), adapters=adapters), training.replace(freeze="base")
    for model, own, has_axis in ((*adapting, False), (Model(module, (8, 8, 1)), training, True)):
        rounds = {k: lowered_rounds(FedAvg(own, keep_trained=True), model, k).compile() for k in (3, 6)}
        for k, program in rounds.items():
            found = shapes_in(program, r"\bf32\[([\d,]+)\]")
            for matrix in matrices:
                assert (tuple(sorted((k, *matrix))) in found) == has_axis, (k, matrix)
        sizes = [program.memory_analysis() for program in rounds.values()]
        for kind in ("argument_size_in_bytes", "output_size_in_bytes"):
            few, many = (getattr(each, kind) for each in sizes)
            base = 4 * sum(np.prod(matrix) for matrix in matrices)
            assert ((many - few) / 3 > base) == has_axis, kind


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if "adapters" in kind().needs])
def test_no_method_copies_the_frozen_base(name):
    """Of a layer without adapters no matrix has a client axis; of one with them, products that clients report have."""
    model = Model(nn.MLP(10, hidden=(97, 89)), (8, 8, 1), adapters=LoRA(2, layers=("Dense_0",)))
    ranked = any(field.name == "ranks" for field in dataclasses.fields(METHODS[name]))
    method = METHODS[name](**(dict(ranks=(1, 2)) if ranked else {}))
    algorithm = FedAvg(LocalTraining(batch_size=5), {name: method}, keep_trained=True)
    found = shapes_in(lowered_rounds(algorithm, model, 3), r"tensor<([\dx]+)xf32>")
    assert (89, 97) in found and (3, 89, 97) not in found


FACTORS = {"params/Dense_0/lora_a", "params/Dense_0/lora_b"}
HEAD = {"params/Dense_1/kernel", "params/Dense_1/bias"}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ((Phase("head", 1), Phase("adapters", 1)), FACTORS | HEAD),
        ((Phase("lora_b+head", 1),), {"params/Dense_0/lora_b", *HEAD}),
    ],
    ids=("head, then adapters", "b and head"),
)
def test_phases_train_parts_of_the_adapters(federation, phases, expected):
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape, adapters=ALL)
    start = model.init(jax.random.key(1))
    result = run_at_once(federation, model, FedAvg(TRAINING.replace(phases=phases)), rounds=2, variables=start)
    before, after = map(masks.by_path, (start, result.variables))
    assert {path for path, old in before.items() if np.abs(old - after[path]).max() > 1e-6} == expected  # not rounding


def test_a_network_with_adapters_needs_a_frozen_base(federation):
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape, adapters=ALL)
    plain = Model(model.module, model.input_shape)
    for wrong, methods, message in (
        (model, {}, "training.freeze 'none': network MLP has adapters, expected 'base' among its"),
        (plain, {"ffa_lora": FFALoRA()}, "method ffa_lora: network MLP has no adapters; set network.adapters, in Pyt"),
    ):
        check(f"^{message}", FedAvg(methods=methods).check, wrong)


def test_models_of_clients_have_the_scales_of_their_ranks(federation):
    """Those that are watched, and those that they keep: though a scale is frozen, it is not the server's."""
    model = Model(nn.MLP(4, hidden=(6,)), federation.input_shape, adapters=ALL)
    algorithm, seen = FedAvg(TRAINING, {"flexlora": FlexLoRA(ranks=(1, 2))}, keep_trained=True), {}
    look = {"look": lambda view: seen.update({i: masks.by_path(of.variables) for i, of in view.local.items()}) or 0.0}
    result = run_at_once(federation, model, algorithm, watch="all", measurements=look)
    kept, is_kept = result.state.clients.memory[TRAINED]
    kept, after = masks.by_path(kept), masks.by_path(jax.device_get(result.variables))
    assert is_kept.all() and sorted(seen) == list(range(5))
    for client, found in seen.items():
        assert found["params/Dense_0/lora_scale"].tolist() == [[2, 0], [1, 1]][client % 2]
        assert_same_bits({path: found[path] for path in kept}, {path: leaf[client] for path, leaf in kept.items()})
        assert_same_bits(found["params/Dense_0/kernel"], after["params/Dense_0/kernel"])
    assert kept.keys() == FACTORS | HEAD | {"params/Dense_0/lora_scale"}
    assert after["params/Dense_0/lora_scale"].tolist() == [1, 1]
