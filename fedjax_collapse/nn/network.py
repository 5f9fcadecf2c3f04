"""What networks have in common: the options of their layers, and the way from an image's features to its classes."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.core.options import Count, WithOptions, check_fields, only_with
from fedjax_collapse.core.records import Outputs, UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.batch_norm import at_least_float32
from fedjax_collapse.nn.heads import classify
from fedjax_collapse.nn.layers import Conv, Init, normalize, torch_uniform
from fedjax_collapse.nn.lowerings.convolution import TimedLowerings
from fedjax_collapse.nn.lowerings.sums import mean_pixels
from fedjax_collapse.nn.model import LEVELS
from fedjax_collapse.nn.projector import project


class Network(nn.Module, kw_only=True):
    """``represent(images, mask, train)`` [batch, d], which each network writes, then projector and head.

    ``projector``: none, moon, feddecorr or feduv (``projector.py``), of ``projector_dim`` outputs.
    ``head``: ``linear``, or what makes another one (``heads/``): a class of a module, such as ``heads.ETF``, or
    one with options, such as ``with_options(heads.ETF, scale=10.0)`` (``options.py``).
    ``normalize_features``: to length 1, before the classifier (FedProc).
    ``dtype``: what the layers of ``represent`` compute in, None for float32, or bfloat16; parameters, running
    statistics and all that follows ``represent`` are float32.

    Raises:
        UserError: at the first call, for an unknown option or images that are too small.
    """

    projector: str = "none"
    projector_dim: Count = only_with(256, projector=...)
    normalize_features: bool = False
    head: str | type[nn.Module] | WithOptions | functools.partial = "linear"
    dtype: str | None = None

    smallest_image = 1  # height and width in pixels
    head_init = staticmethod(torch_uniform)

    @nn.compact
    def __call__(self, images: jax.Array, mask: jax.Array, train: bool) -> Outputs:
        self._check(*images.shape[1:3])
        features = at_least_float32(self.represent(images, mask, train))
        features = project(self.projector, features, mask, train, self.projector_dim)
        if self.normalize_features:
            features = features * jax.lax.rsqrt(jnp.maximum(jnp.sum(features**2, axis=1, keepdims=True), 1e-24))
        return Outputs(features, classify(self.head, features, self.num_classes))

    def _check(self, height, width):
        check_fields(self)
        name, smallest = type(self).__name__, self.smallest_image
        if self.num_classes < 1:
            raise UserError(f"{name}: num_classes {self.num_classes} is too small, expected >= 1")
        if min(height, width) < smallest:
            raise UserError(
                f"{name}: images of {height}x{width} pixels are too small, expected at least {smallest}x{smallest}; "
                f"resize them or choose another network"
            )


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """What all convolutions of a network share; its methods make layers, inside a compact method."""

    norm: str
    lowering: str | TimedLowerings
    dtype: str | None
    target: Target
    kernel_init: Init = torch_uniform

    def conv(self, images: jax.Array, features: int, size: int = 3, **options) -> jax.Array:
        """Images after a convolution; ``options`` are those of ``Conv``."""
        own = dict(lowering=self.lowering, dtype=self.dtype, target=self.target, kernel_init=self.kernel_init)
        return Conv(features, size, **own | options)(images)

    def normalize(self, images: jax.Array, mask: jax.Array, train: bool, momentum: float = 0.1) -> jax.Array:
        """Images after the normalisation; ``momentum`` is of BatchNorm's running statistics."""
        options = dict(momentum=momentum, target=self.target) if self.norm == "batch" else {}
        return normalize(self.norm, images, mask, train, **options)

    def conv_norm(
        self, images: jax.Array, features: int, size: int = 3, *, mask: jax.Array, train: bool, **options
    ) -> jax.Array:
        """Images after a convolution, with a bias only if nothing follows, and the normalisation."""
        images = self.conv(images, features, size, **dict(use_bias=self.norm == "none") | options)
        return self.normalize(images, mask, train)


class ConvNetwork(Network, kw_only=True):
    """A network of convolutions and normalisations.

    ``norm``: batch, group or none. ``lowering``: of the convolutions (``convolution.py``). ``target``: what it is
    compiled for, set by whoever compiles it (``Model.on``).
    """

    norm: str = "batch"
    lowering: str | TimedLowerings = "auto"
    target: Target = Target()

    def layers(self, kernel_init: Init = torch_uniform) -> LayerOptions:
        """The options of its convolutions."""
        return LayerOptions(self.norm, self.lowering, self.dtype, self.target, kernel_init)


def global_mean(images: jax.Array, target: Target) -> jax.Array:
    """Mean over the pixels, [batch, channels], in float32 at least."""
    return mean_pixels(at_least_float32(images), target)


def as_level(module: nn.Module, outputs: jax.Array) -> jax.Array:
    """The outputs of a layer, of which a level of the representation is kept if levels are asked for (``Model.apply``).

    It is the mean over the pixels of [batch, height, width, channels]; [batch, channels] stay as they are.
    """
    if module.is_mutable_collection(LEVELS) and not module.is_initializing():
        module.sow(LEVELS, "level", at_least_float32(outputs).mean(axis=tuple(range(1, outputs.ndim - 1))))
    return outputs


def scale(channels: int, multiplier: float) -> int:
    """A number of channels times a network's ``width_multiplier``, at least 1."""
    return max(1, round(channels * multiplier))


def dropout(module: nn.Module, inputs: jax.Array, rate: float, train: bool, whole_examples: bool = False) -> jax.Array:
    """Inputs of which a share is 0 and the rest scaled up, in training and if there is a key for ``dropout``."""
    axes = tuple(range(1, inputs.ndim)) if whole_examples else ()
    return nn.Dropout(rate, axes, deterministic=not (train and module.has_rng("dropout")))(inputs)


def rematerialized(block: type[nn.Module], remat: bool) -> type[nn.Module]:
    """The block's class; with ``remat`` its inside is computed again for the gradient instead of being kept.

    Blocks are called as ``block(images, mask, train)``, and named by hand, because the two classes' own names differ.
    """
    return nn.remat(block, static_argnums=3) if remat else block
