"""Base classes of networks, with the options of layers, projector and classifier."""

import dataclasses
import functools
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn import heads
from fedjax_collapse.nn.heads import classify
from fedjax_collapse.nn.layers import Conv, DType, Init, Norm, normalize, torch_uniform
from fedjax_collapse.nn.lowerings.convolution import Lowering, TimedLowerings, is_norm_fused
from fedjax_collapse.nn.lowerings.sums import at_least_float32, mean_pixels
from fedjax_collapse.nn.model import LEVELS
from fedjax_collapse.nn.projector import Projector, project
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.options import Count, OpenChoice, WithOptions, check_fields, only_with

HEADS = discovery.classes(heads, nn.Module)


class Network(nn.Module, kw_only=True):
    """A network: ``represent(images, mask, train)`` [batch, d], which subclasses define, then projector and head.

    Attributes:
        projector: layers between ``represent`` and the head, as in the paper's code (``projector.py``).
        projector_dim: number of outputs of the projector.
        normalize_features: how features are normalized before the classifier, if at all: to norm 1 (``unit`` or True,
            FedProc), to norm sqrt(d) (``scaled``), or by a LayerNorm without parameters, eps 1e-5 (``layer``). The
            last two are baselines (Zhang et al., TMLR 2024, arXiv 2308.09565) of networks without BatchNorm.
        head: the classifier (``heads/``): a name; in Python a class such as ``heads.ETF``, or ``with_options(heads.ETF,
            scale=10.0)``.
        dtype: dtype of the computation in ``represent``; None is float32. Params, running statistics, projector and
            head are float32.
        target: the device for which the network is compiled, set by ``Model.on``.

    Raises:
        UserError: at the first call, for an unknown option or images that are too small.
    """

    projector: Projector = "none"
    projector_dim: Count = only_with(256, projector=...)
    normalize_features: Annotated[str, ("unit", "scaled", "layer")] | bool = False
    head: Annotated[str, OpenChoice(HEADS, "")] | type[nn.Module] | WithOptions | functools.partial = "linear"
    dtype: DType = None
    target: Target = Target()

    smallest_image = 1  # height and width in pixels
    needs_images = True  # or inputs of any shape
    head_init = staticmethod(torch_uniform)
    head_bias_init = staticmethod(torch_uniform)

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> Outputs:
        self._check(*images.shape[1:-1])
        features = self.projected(self.represent(images, mask, train), mask, train)
        return Outputs(features, classify(self.head, features, self.num_classes, mask, train))

    def projected(self, features: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        """Returns the features after the projector, normalized by ``normalize_features``, in at least float32."""
        features = project(self.projector, at_least_float32(features), mask, train, self.projector_dim)
        if not self.normalize_features:
            return features
        if self.normalize_features == "layer":
            return jax.nn.standardize(features, axis=1, epsilon=1e-5)
        norm = features.shape[1] ** 0.5 if self.normalize_features == "scaled" else 1.0
        return features * (norm * jax.lax.rsqrt(jnp.maximum(jnp.sum(features**2, axis=1, keepdims=True), 1e-24)))

    def _check(self, *size):
        check_fields(self)
        name, smallest = type(self).__name__, self.smallest_image
        if self.num_classes < 1:
            raise UserError(f"{name}: num_classes {self.num_classes} is too small, expected >= 1")
        if not self.needs_images:
            return
        if len(size) != 2:
            raise UserError(
                f"{name}: it takes images of height, width and channels, not inputs of {1 + len(size)} axes"
            )
        if min(size) < smallest:
            raise UserError(
                f"{name}: images of {size[0]}x{size[1]} pixels are too small, expected at least {smallest}x{smallest}; "
                f"resize them or choose another network"
            )


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """The options shared by all convolutions of a network; its methods add layers inside a compact method."""

    norm: str
    lowering: str | TimedLowerings
    dtype: str | None
    target: Target
    kernel_init: Init = torch_uniform

    def conv(self, images: jax.Array, features: int, size: int = 3, **options) -> jax.Array:
        """Applies a convolution; ``options`` are options of ``Conv``."""
        own = dict(lowering=self.lowering, dtype=self.dtype, target=self.target, kernel_init=self.kernel_init)
        return Conv(features, size, **own | options)(images)

    def normalize(
        self, images: jax.Array, mask: jax.Array, train: bool, momentum: float = 0.1, relu: bool = False
    ) -> jax.Array:
        """Applies the normalisation, and ReLU if ``relu``; ``momentum`` is for BatchNorm's running statistics."""
        if self.norm == "batch":
            options = dict(momentum=momentum, relu=relu, fused=is_norm_fused(self.lowering))
            return normalize(self.norm, images, mask, train, self.target, **options)
        images = normalize(self.norm, images, mask, train, self.target)
        return jax.nn.relu(images) if relu else images

    def conv_norm(
        self,
        images: jax.Array,
        features: int,
        size: int = 3,
        *,
        mask: jax.Array,
        train: bool,
        relu: bool = False,
        **options,
    ) -> jax.Array:
        """Applies a convolution, the normalisation, and ReLU if ``relu``; a bias only without normalisation."""
        images = self.conv(images, features, size, **dict(use_bias=self.norm == "none") | options)
        return self.normalize(images, mask, train, relu=relu)


class ConvNetwork(Network, kw_only=True):
    """A network of convolutions and normalisations.

    Attributes:
        norm: normalisation of the layers.
        lowering: how convolutions are computed (``lowerings/``): ``auto`` follows rules, ``timed`` measures once on the
            device.
    """

    norm: Norm = "batch"
    lowering: Lowering | TimedLowerings = "auto"

    def layers(self, kernel_init: Init = torch_uniform) -> LayerOptions:
        """Returns the options of the network's convolutions."""
        return LayerOptions(self.norm, self.lowering, self.dtype, self.target, kernel_init)


def global_mean(images: jax.Array, target: Target) -> jax.Array:
    """Returns the mean over the pixels, [batch, channels], in at least float32."""
    return mean_pixels(at_least_float32(images), target)


def as_level(module: nn.Module, outputs: jax.Array) -> jax.Array:
    """Returns ``outputs``, and records them as a level of the representation if levels are requested (``Model.apply``).

    The level is the mean over the pixels of [batch, height, width, channels], or ``outputs`` if [batch, channels].
    """
    if module.is_mutable_collection(LEVELS) and not module.is_initializing():
        module.sow(LEVELS, "level", at_least_float32(outputs).mean(axis=tuple(range(1, outputs.ndim - 1))))
    return outputs


def scale(channels: int, multiplier: float) -> int:
    """Returns a number of channels times a network's ``width_multiplier``, at least 1."""
    return max(1, round(channels * multiplier))


def dropout(module: nn.Module, inputs: jax.Array, rate: float, train: bool, whole_examples: bool = False) -> jax.Array:
    """Applies dropout, in training and if there is a key for ``dropout``."""
    axes = tuple(range(1, inputs.ndim)) if whole_examples else ()
    return nn.Dropout(rate, axes, deterministic=not (train and module.has_rng("dropout")))(inputs)


def rematerialized(block: type[nn.Module], remat: bool) -> type[nn.Module]:
    """Returns the block's class; with ``remat``, activations are recomputed for the gradient instead of stored.

    Call blocks as ``block(images, mask, train)``, and name them: default names of the two classes differ.
    """
    return nn.remat(block, static_argnums=3) if remat else block
