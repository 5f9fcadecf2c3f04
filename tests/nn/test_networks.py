"""The networks, vision transformers among them: sizes of the published ones, initialisation, options, wrong inputs."""

import functools
import math

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close, cases, check
from test_network_training import assert_step_equals_torchs
from tiny_networks import KINDS, TINY, batch_of, compiled, initialize, least_model, tiny_model, training_step
from torch.nn.functional import batch_norm, group_norm

from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, Model, Outputs, nn, simulate
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Variables
from fedjax_collapse.nn import layers, network
from fedjax_collapse.nn.inspection import count_lowerings
from fedjax_collapse.nn.interchange import torch_networks as pytorch_networks
from fedjax_collapse.nn.networks import alexnet
from fedjax_collapse.nn.sequences import TokenNetwork

FEDUV_18 = dict(strides=(2, 2, 2, 2), projector="feduv", projector_dim=512)
FEDUV_50 = dict(stem_size=7, stem_stride=2, projector="feduv", projector_dim=2048)
MOON = dict(projector="moon")
FAN_OUT = dict(kernel_init="kaiming_fan_out")
# network, options, classes, image, features, trainable parameters, the same with BatchNorm's statistics and counters
PUBLISHED = [
    ("mobilenet_v2", {}, 10, (32, 32, 3), 1280, 2_296_922, 2_332_067),
    ("mobilenet_v2", {}, 200, (64, 64, 3), 1280, 2_540_312, 2_575_457),
    ("mobilenet_v2", dict(projector="feddecorr"), 10, (32, 32, 3), 256, 3_270_618, 3_305_763),
    ("resnet20", {}, 10, (32, 32, 3), 64, 269_722, 271_117),
    ("resnet32", {}, 10, (32, 32, 3), 64, 464_154, 466_457),
    ("resnet18", {}, 10, (32, 32, 3), 512, 11_173_962, 11_183_582),
    ("resnet18", {}, 10, (28, 28, 1), 512, 11_172_810, 11_182_430),
    ("resnet18", FEDUV_18, 100, (32, 32, 3), 512, 11_751_716, 11_763_515),
    ("resnet18", MOON, 10, (32, 32, 3), 256, 11_565_386, 11_575_006),
    ("resnet50", FEDUV_50, 200, (64, 64, 3), 2048, 32_318_728, 32_380_095),
    ("resnet50", MOON, 200, (64, 64, 3), 256, 28_272_648, 28_325_821),
    ("wide_resnet", {}, 100, (32, 32, 3), 640, 36_546_980, 36_564_957),
    ("efficientnet_b0", {}, 8, (200, 200, 3), 640, 4_832_516, 4_874_581),
    ("alexnet", {}, 10, (256, 256, 3), 4096, 57_063_498, 57_082_193),
    ("feduv_cnn", dict(projector="feduv"), 10, (96, 96, 3), 256, 161_594, 163_268),
    ("moon_cnn", MOON, 10, (32, 32, 3), 256, 92_626, 92_626),
    ("moon_cnn", {}, 10, (32, 32, 3), 84, 62_006, 62_006),
    ("pfllib_cnn", {}, 100, (32, 32, 3), 512, 924_708, 924_708),
]


def trace(model):
    """Outputs and initial variables as shapes, and the image that each convolution returns."""
    images = []

    def is_conv(module, _):
        return isinstance(module, layers.Conv)

    def init(key):
        batch = jnp.zeros((1, *model.input_shape)), jnp.ones(1, bool)
        outputs, made = model.module.init_with_output(key, *batch, train=False, capture_intermediates=is_conv)
        images.extend(leaf.shape[1:] for leaf in jax.tree.leaves(made["intermediates"]))
        return outputs, Variables(made["params"], made.get("batch_stats", {}))

    return *jax.eval_shape(init, jax.random.key(0)), images


def torch_convolutions(network, image_shape):
    """The image [height, width, channels] that each convolution returns, without computing it."""
    images = []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda *call: images.append((*call[2].shape[2:], call[2].shape[1])))
    network.eval()(torch.empty(1, *np.roll(image_shape, 1), device="meta"))
    return images


@pytest.mark.slow
@cases(*PUBLISHED)
def test_published_networks(name, options, classes, image_shape, features, trainable, state):
    """Sizes to the last digit (``docs/methods.md`` section 6), and every convolution's image as large as PyTorch's."""
    outputs, variables, images = trace(Model(TINY[name].network(classes, **options), image_shape))
    params, stats = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in variables)
    assert params == trainable
    assert params + stats + len(jax.tree.leaves(variables.batch_stats)) // 2 == state
    assert (outputs.features.shape, outputs.logits.shape) == ((1, features), (1, classes))

    with torch.device("meta"):
        network = pytorch_networks.build(name, classes, image_shape, **options)
    assert sum(weight.numel() for weight in network.parameters()) == trainable
    assert sorted(images) == sorted(torch_convolutions(network, image_shape))


def test_every_network_is_tested():
    """Those of sequences in ``test_sequences.py``."""
    of_images = {n for n in vars(nn).values() if isinstance(n, type) and not issubclass(n, TokenNetwork)}
    assert {tiny.network for tiny in TINY.values()} == of_images
    assert set(TINY) == set(pytorch_networks.BACKBONES)


NORMAL = dict(resnet20="fan_in", efficientnet_b0="fan_out")


@pytest.mark.slow
@cases(*[(name, {}) for name in KINDS if name != "vit"], ("resnet18", FAN_OUT))
def test_initialisation(name, options, float64):
    """Each weight and bias has the distribution of PyTorch's network."""
    mode = "fan_out" if options else NORMAL.get(name)
    params = masks.by_path(initialize(tiny_model(name, **options)).params)
    for path, kernel in params.items():
        layer = path.removesuffix("/kernel")
        if layer == path:
            continue
        fan_in, fan_out = np.prod(kernel.shape[:-1]), np.prod(kernel.shape[:-2]) * kernel.shape[-1]
        is_head, bias = layer.startswith("Dense"), params.get(f"{layer}/bias", np.zeros(0))
        if mode is None or (is_head and mode == "fan_out"):
            check_uniform(kernel, 1 / np.sqrt(fan_in))
        else:
            check_normal(kernel, np.sqrt(2 / (fan_in if mode == "fan_in" else fan_out)))
        if mode == "fan_out" and not is_head:  # squeeze and excitation
            assert not bias.any()
        else:
            check_uniform(bias, 1 / np.sqrt(fan_in))


def check_uniform(values, bound):
    assert np.abs(values).max(initial=0) <= bound
    if values.size >= 200:
        assert np.abs(values).max() > 0.95 * bound
        assert np.std(values) == pytest.approx(bound / np.sqrt(3), rel=0.15)


def check_normal(values, std):
    if values.size >= 200:
        assert np.abs(values).max() > 2.2 * std  # a uniform distribution ends at 1.7
        assert np.std(values) == pytest.approx(std, rel=0.2)


OTHER_VIT = dict(width=12, depth=2, heads=3, mlp_width=20, pool="mean", epsilon=1e-3, gelu="tanh")
WITH_OPTIONS = [("vit", (8, 12, 1), OTHER_VIT), ("feduv_cnn", (21, 21, 1), dict(convolutions=((2, 3, 2), (3, 1, 1))))]
WITH_OPTIONS += [
    ("mlp", (2, 2, 3), dict(hidden=(6,), projector=projector, normalize_features=normalized))
    for projector, normalized in (("none", "scaled"), ("moon", True), ("feddecorr", "layer"), ("feduv", "unit"))
]


@cases(*WITH_OPTIONS)
def test_a_step_with_other_options_equals_torchs(name, image_shape, options, float64):
    """A ViT of images that are not square, one channel and two blocks, with the other value of each option; and
    features that come out of a projector, normalized if asked, which the classifier follows."""
    model = Model(TINY[name].network(4, **options), image_shape)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape)), model.variable_shapes().params)
    assert_step_equals_torchs(model, name, options, initialize(model)._replace(params=params))
    head = masks.select(model.mask("head").params, params)
    assert {leaf.shape for leaf in head.values()} == {(model.initial_shapes().features.shape[1], 4), (4,)}


@cases("batch", "group")
def test_an_mlp_with_a_normalisation_equals_torch(norm, float64):
    """Between each product, without a bias, and its ReLU; BatchNorm also in evaluation, by its running statistics."""
    model, rng = Model(nn.MLP(4, hidden=(6, 8), norm=norm), (2, 2, 3)), np.random.default_rng(0)
    batch = batch_of(model.input_shape)
    variables, mask = initialize(model), np.array(batch.mask)
    variables = variables._replace(params=jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), variables.params))
    own = jax.tree.map(torch.tensor, variables.params)
    running = [(torch.zeros(n).double(), torch.ones(n).double()) for n in (6, 8)]

    def features(train):
        rows = torch.tensor(np.array(batch.inputs)[mask].reshape(mask.sum(), -1))
        for i, statistics in enumerate(running):
            (rows,), made = (rows @ kernel for kernel in own[f"Dense_{i}"].values()), own[f"{norm.title()}Norm_{i}"]
            if norm == "batch":
                rows = batch_norm(rows, *statistics, made["scale"], made["bias"], train)
            else:
                rows = group_norm(rows, 2, made["scale"], made["bias"])
            rows = rows.relu()
        return rows.numpy()

    apply = jax.jit(model.apply, static_argnames="train")
    outputs, statistics = apply(variables, batch, train=True)
    assert_close(outputs.features[mask], features(True), 1e-12)
    outputs, _ = apply(variables._replace(batch_stats=statistics), batch, train=False)
    assert_close(outputs.features[mask], features(False), 1e-12)
    assert 0 < mask.sum() < len(mask)


@cases("bfloat16", "float16")
def test_an_own_network_of_16_bits_is_trained_and_measured_in_32(dtype, federation):
    class Half(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, inputs, mask, train):
            features = jax.nn.relu(flax.linen.Dense(6, dtype=dtype)(inputs.reshape(len(inputs), -1)))
            return Outputs(features, flax.linen.Dense(4, dtype=dtype)(features))

    model = Model(Half(), federation.input_shape)
    outputs, _ = model.apply(initialize(model), batch_of(federation.input_shape), train=True)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}
    algorithm = FedAvg(LocalTraining(epochs=1, batch_size=4), {"feddecorr": FedDecorr(0.1)})
    (row,) = simulate(federation, model, algorithm, rounds=1, key=jax.random.key(0)).metrics
    assert all(math.isfinite(row[name]) for name in ("train/task_loss", "loss", "effective_rank", "dead_features"))


def test_options_may_be_lists():
    made, same = (Model(nn.SmallCNN(4, channels=channels), (8, 8, 1)) for channels in ([5, 8], (5, 8)))
    assert made == same and hash(made) == hash(same) and made.module.channels == (5, 8)


@cases(True, "scaled", "layer")
def test_features_of_length_zero_have_a_finite_gradient(how):
    module, batch = nn.MLP(2, hidden=(3,), normalize_features=how), (jnp.ones((1, 1, 1, 1)), jnp.ones(1, bool))
    silent = jax.tree.map(jnp.zeros_like, module.init(jax.random.key(0), *batch, train=False))
    gradient = jax.jit(jax.grad(lambda variables: module.apply(variables, *batch, train=True).logits.sum()))(silent)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@cases("mobilenet_v2", "resnet18", "wide_resnet", "efficientnet_b0", "vit")
def test_remat_keeps_less(name):
    """The same variables; fewer numbers of each example wait for the backward pass."""
    shapes, kept = [], []
    for remat in (False, True):
        model = tiny_model(name, remat=remat)
        shapes.append(model.variable_shapes())
        batch = batch_of(model.input_shape)
        few, more = (waiting(model, shapes[-1], jax.tree.map(lambda x, n=n: x[:n], batch)) for n in (2, 6))
        kept.append(more - few)  # without weights, which wait as well
    assert shapes[0] == shapes[1]
    assert kept[1] < 0.7 * kept[0]


def waiting(model, variables, batch):
    """How many numbers wait for the backward pass."""
    apply = functools.partial(model.apply, batch=batch, train=True)
    pull = jax.eval_shape(lambda variables: jax.vjp(apply, variables)[1], variables)
    return sum(leaf.size for leaf in jax.tree.leaves(pull))


@pytest.mark.parametrize("name", KINDS)
def test_bfloat16_is_for_computing_only(name):
    """Products are of bfloat16; parameters, statistics, features and logits are not."""
    model = least_model(name, dtype="bfloat16")
    variables, batch = model.variable_shapes(), batch_of(model.input_shape)
    program, after = jax.make_jaxpr(functools.partial(training_step, model), return_shape=True)(variables, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves((variables, after))} == {jnp.dtype("float32")}
    products = products_of(program.jaxpr)
    assert products.count("float32") == 4  # of the classifier: two passes and the gradients of inputs and weights
    assert products.count("bfloat16") == len(products) - 4 >= 4


def products_of(jaxpr):
    """The dtype of every matrix product's first factor, inner functions included, without sums (``nn/sums.py``)."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and equation.invars[0].aval.shape[-2] > 1:
            found.append(str(equation.invars[0].aval.dtype))
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            found.extend(products_of(inner.jaxpr) if hasattr(inner, "jaxpr") else [])
    return found


@cases("batch", "group")
def test_bfloat16_is_near_float32(norm):
    """Outputs, and running statistics and a step's params, which are float32."""
    found = []
    for dtype in (None, "bfloat16"):
        model = tiny_model("small_cnn", channels=(4, 8), norm=norm, dtype=dtype)
        arguments = initialize(model), batch_of(model.input_shape)
        found.append(compiled(functools.partial(training_step, model), *arguments)(*arguments))
    assert_close(*found, 0.05)
    assert np.abs(found[0][0].logits - found[1][0].logits).max() > 1e-6


@cases(("wide_resnet", 3), ("efficientnet_b0", 2), ("resnet18", 0))
def test_dropout_needs_training_and_a_key(name, draws):
    """One draw for each block (those with a shortcut in EfficientNet, and one before its dense layer)."""
    model = tiny_model(name)
    variables, batch = model.variable_shapes(), batch_of(model.input_shape)

    def count(train, rngs):
        apply = functools.partial(model.module.apply, train=train, rngs=rngs, mutable=["batch_stats"])
        program = jax.make_jaxpr(apply)(variables._asdict(), batch.inputs, batch.mask)
        return str(program).count("random_bits[")

    key = {"dropout": jax.random.key(0)}
    assert (count(True, key), count(True, {}), count(False, key)) == (draws, 0, 0)


@cases(False, True)
def test_dropout(whole_examples):
    """A share of the entries, or of the examples, is 0; the others are scaled up so that the mean stays."""

    class Dropping(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, inputs):
            return network.dropout(self, inputs, 0.25, True, whole_examples)

    outputs = np.asarray(Dropping().apply({}, jnp.ones((2000, 3, 2, 5)), rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(outputs)) == {0, np.float32(4 / 3)} and outputs.mean() == pytest.approx(1, abs=0.05)
    assert (outputs == outputs[:, :1, :1, :1]).all() == whole_examples


@cases((7, 6), (6, 6), (13, 6), (3, 6), (5, 2))
def test_adaptive_pooling_equals_torch(extent, size):
    images = np.random.default_rng(0).normal(size=(2, extent, extent + 1, 3)).astype(np.float32)
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.tensor(images).permute(0, 3, 1, 2), size)
    found = jax.jit(alexnet.adaptive_avg_pool, static_argnums=1)(images, size)
    assert_close(found, expected.permute(0, 2, 3, 1).numpy(), 1e-6)


@cases(
    (nn.ResNet18(0), 8, "ResNet18: num_classes 0 is too small, expected >= 1"),
    (nn.AlexNet(3), 62, "AlexNet: images of 62x62 pixels are too small, expected at least 63x63; resize them"),
    (nn.FedUVCNN(3), 20, "FedUVCNN: images of 20x20 pixels are too small, expected at least 21x21"),
    (nn.MOONCNN(3), 15, "MOONCNN: images of 15x15 pixels are too small, expected at least 16x16"),
    (nn.SmallCNN(3), 3, "SmallCNN: images of 3x3 pixels are too small, expected at least 4x4"),
    (nn.SmallCNN(3, dtype="float8"), 8, "SmallCNN: dtype 'float8': expected one of float32, bfloat16"),
    (nn.SmallCNN(3, norm="layer"), 8, "SmallCNN: norm 'layer': expected one of batch, group, none"),
    (nn.MLP(3, projector="simclr"), 8, "MLP: projector 'simclr': expected one of none, moon, feddecorr, feduv"),
    (
        nn.ResNet20(3, kernel_init="zeros"),
        8,
        "ResNet20: kernel_init 'zeros': expected one of uniform, kaiming_fan_",
    ),
    (nn.ResNet20(3, blocks=(1, 1)), 8, r"blocks \(1, 1\) and strides \(1, 2, 2\): expected a number a stage"),
    (nn.WideResNet(3, depth=12), 8, r"depth 12, expected 6 n \+ 4"),
    (nn.ViT(3, size="L"), 8, "ViT: size 'L': expected one of micro, mini, Ti, S, B"),
    (nn.ViT(3, heads=3), 8, "ViT: width 128 with 3 heads, expected a multiple of the number of heads"),
    (nn.ViT(3, patch=16), 8, "ViT: images of 8x8 pixels are too small, expected at least 16x16"),
    (nn.ViT(3, patch=3), 8, "images of 8x8 pixels: expected multiples of the patches' 3 pixels"),
    (nn.ViT(3, dtype="float8"), 8, "ViT: dtype 'float8': expected one of float32, bfloat16"),
)
def test_wrong_inputs(module, size, message):
    check(message, jax.eval_shape, Model(module, (size, size, 3)).init, jax.random.key(0))


@pytest.mark.parametrize("name", TINY)
def test_the_smallest_image_is_large_enough(name):
    module = least_model(name).module
    jax.eval_shape(Model(module, (module.smallest_image, module.smallest_image, 1)).init, jax.random.key(0))


def test_lowerings_of_a_network():
    """ResNet-18: strips for colours, patches for strided and 1x1, small tiles for the last stage, else large."""
    model = Model(nn.ResNet18(10), (32, 32, 3))
    assert count_lowerings(model, batch_size=32) == {"patches": 6, "strips": 1, "winograd2": 3, "winograd4": 10}
    assert count_lowerings(Model(nn.MLP(10), (8, 8, 1)), batch_size=32) == {}


@cases(
    ("Ti", 16, (224, 224, 3), 5_524_416, 5_717_416),
    ("S", 16, (224, 224, 3), 21_665_664, 22_050_664),
    ("B", 16, (224, 224, 3), 85_798_656, 86_567_656),
    ("mini", 4, (32, 32, 1), 1_200_512, 1_329_512),
    ("micro", 4, (28, 28, 1), 204_416, 269_416),
)
def test_published_vits(size, patch, image_shape, backbone, with_1000_classes):
    params = Model(nn.ViT(1000, size=size, patch=patch), image_shape).variable_shapes().params
    counts = {name: sum(leaf.size for leaf in jax.tree.leaves(layer)) for name, layer in params.items()}
    assert sum(counts.values()) == with_1000_classes
    assert sum(counts.values()) - counts["Dense_0"] == backbone


def test_initialisation_of_a_vit():
    """Normal of 0.02 and biases of 0; PyTorch's default in the patches and in the classifier."""
    found = masks.by_path(initialize(Model(nn.ViT(4, size="micro", depth=1), (8, 8, 3))).params)
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
