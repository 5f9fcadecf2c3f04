"""Every network in small, with each kind of its blocks, and a training step of it that compiles fast."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import Model, nn
from fedjax_collapse.core.records import Batch, Variables
from fedjax_collapse.losses import cross_entropy

NUM_CLASSES = 4
FAST_COMPILATION = {"xla_backend_optimization_level": 0}  # a third of the time; the programs are short


class Tiny(NamedTuple):
    network: type
    options: dict[str, Any]
    size: int = 32  # of the images
    least: dict[str, Any] = {}  # options that leave a block or a few layers  # noqa: RUF012


TINY = {
    "alexnet": Tiny(
        nn.AlexNet, dict(width_multiplier=1 / 32), size=64, least=dict(convolutions=((64, 3, 4, 1, True),))
    ),
    "efficientnet_b0": Tiny(
        nn.EfficientNetB0,
        dict(width_multiplier=1 / 4, stages=((1, 3, 1, 16, 1), (6, 5, 2, 24, 2))),
        least=dict(stages=((6, 3, 2, 16, 1),)),
    ),
    "feduv_cnn": Tiny(nn.FedUVCNN, dict(width_multiplier=1 / 4), least=dict(convolutions=((16, 3, 2), (32, 3, 2)))),
    "mlp": Tiny(nn.MLP, dict(hidden=(12, 8))),
    "mobilenet_v2": Tiny(
        nn.MobileNetV2,
        dict(width_multiplier=1 / 4, stages=((1, 16, 1, 1), (6, 24, 2, 2))),
        least=dict(stages=((6, 16, 1, 2),)),
    ),
    "moon_cnn": Tiny(nn.MOONCNN, dict(hidden=(20, 10)), least=dict(channels=(6,))),
    "pfllib_cnn": Tiny(nn.PFLlibCNN, dict(channels=(5, 8), hidden=(12,)), least=dict(channels=(6,))),
    "resnet18": Tiny(
        nn.ResNet18, dict(width_multiplier=1 / 8, blocks=(1, 1), strides=(1, 2)), least=dict(blocks=(1,), strides=(2,))
    ),
    "resnet20": Tiny(nn.ResNet20, dict(blocks=(1, 1), strides=(1, 2)), least=dict(blocks=(1,), strides=(2,))),
    "resnet32": Tiny(nn.ResNet32, dict(blocks=(1, 1), strides=(1, 2)), least=dict(blocks=(1,), strides=(2,))),
    "resnet50": Tiny(
        nn.ResNet50, dict(width_multiplier=1 / 8, blocks=(2,), strides=(2,)), least=dict(blocks=(1,), strides=(2,))
    ),
    "small_cnn": Tiny(nn.SmallCNN, dict(channels=(5, 8))),
    "vit": Tiny(nn.ViT, dict(size="micro", patch=16, depth=1, heads=2, mlp_width=24)),
    "wide_resnet": Tiny(nn.WideResNet, dict(width_multiplier=1.0, depth=10), least=dict(width_multiplier=1 / 4)),
}

LARGE = ("alexnet", "efficientnet_b0", "mobilenet_v2", "resnet50", "wide_resnet")  # which take long to compile
KINDS = [name for name in TINY if name != "resnet32"]  # whose small form is ResNet-20's


def tiny_model(name: str, **options) -> Model:
    """With each kind of the network's blocks."""
    tiny = TINY[name]
    return Model(tiny.network(**{"num_classes": NUM_CLASSES, **tiny.options, **options}), (tiny.size, tiny.size, 3))


def least_model(name: str, **options) -> Model:
    """With less than that, for programs that compile slowly."""
    return tiny_model(name, **{**TINY[name].least, **options})


def compiled(function, *arguments):
    """The compiled function."""
    return jax.jit(function).lower(*arguments).compile(compiler_options=FAST_COMPILATION)


@functools.cache
def _initialize(model, x64):
    del x64
    key = jax.random.key(0)
    return compiled(model.init, key)(key)


def initialize(model: Model) -> Variables:
    """Initial variables."""
    return _initialize(model, jax.config.jax_enable_x64)


def batch_of(image_shape: tuple[int, int, int], garbage: float = 1e3) -> Batch:
    """Six rows, of which the third and the last are padding."""
    rng = np.random.default_rng(0)
    mask = np.array([1, 1, 0, 1, 1, 0], bool)
    images = np.where(mask[:, None, None, None], rng.normal(size=(6, *image_shape)), garbage)
    labels = rng.integers(0, NUM_CLASSES, 6)
    return Batch(jnp.asarray(images, float), jnp.asarray(labels, jnp.int32), jnp.asarray(mask))


def training_step(model: Model, variables: Variables, batch: Batch):
    """Outputs in training, the variables after a step of SGD of learning rate 1, and their outputs in evaluation."""

    def loss(params):
        outputs, stats = model.apply(Variables(params, variables.batch_stats), batch, train=True)
        return cross_entropy(outputs.logits, batch.labels, batch.mask), (outputs, stats)

    gradient, (outputs, stats) = jax.grad(loss, has_aux=True)(variables.params)
    variables = Variables(jax.tree.map(jnp.subtract, variables.params, gradient), stats)
    return outputs, variables, model.apply(variables, batch, train=False)[0]


def derivatives(function, trained, *arguments):
    """The value, the gradients of the sum of its cubes, and those of the sum of these gradients' squares."""

    def slopes(*arguments):
        return jax.grad(lambda *a: jnp.sum(function(*a) ** 3), trained)(*arguments)

    def curvatures(*arguments):
        return jax.grad(lambda *a: sum(jnp.sum(slope**2) for slope in slopes(*a)), trained)(*arguments)

    return [each(*arguments) for each in (function, slopes, curvatures)]
