"""Low-rank adapters (LoRA) of the layers of a network, whose other params are the frozen ``base``."""

import contextlib
import dataclasses
import fnmatch
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, UserError, Variables
from fedjax_collapse.nn.layers import Conv, Dense, PatchEmbedding, cast, torch_uniform
from fedjax_collapse.schema.options import Count, Decay, Positive, check_fields

SCALE = "lora_scale"
_LINEAR = (Dense, Conv, PatchEmbedding)


@dataclasses.dataclass(frozen=True)
class LoRA:
    """Adds ``s b(a(x))`` to the outputs of linear layers, with factors a and b of low rank r.

        y = W x + s b a x,   s = alpha / r, or alpha / sqrt(r) if ``rank_stabilized``

    Hu et al., "LoRA" (ICLR 2022); Kalajdzievski (2023) for rsLoRA. Conventions and defaults are as in the library peft.
    A layer gets three params next to its kernel [..., in, out]: ``lora_a`` [..., in, r], ``lora_b`` [r, out], and
    ``lora_scale`` [r], which is s and never trained; a method whose clients have different ranks sets it at a client,
    with 0 for entries that the client lacks. For a convolution, a is a convolution to r channels with the same kernel
    size and stride, and b a 1x1 convolution. Initially b is 0, and the other params are as without adapters.

    The parts of such a network (``core/masks.py``) are ``adapters``, which are all ``lora_a`` and ``lora_b``, the
    ``head``, and the ``base``, which is frozen: ``LocalTraining(freeze="base")``.

    Args:
        rank: r, at most the smaller dimension of each matrix.
        alpha: the scale s times the rank.
        layers: names of layers, or patterns of paths such as ``block_*/query``; ``all`` is all linear layers but the
            head.
        rank_stabilized: whether s is alpha / sqrt(r).
        dropout: rate of dropout of the adapter's inputs in training.
        one_scale: whether clients with smaller ranks (``methods``) use the scale of this rank, as FLoRA's released
            code, instead of their own.
        init: distribution of a: ``uniform`` in +-1 / sqrt(in), as PyTorch's Linear, or ``gaussian`` with std 1 / r.

    Examples:
        >>> Model(nn.ViT(10, size="micro", patch=7), (28, 28, 1), adapters=LoRA(rank=4, layers=("query", "value")))
    """

    rank: Count = 8
    alpha: Positive = 8.0
    layers: tuple[str, ...] = ("query", "value")
    rank_stabilized: bool = False
    dropout: Decay = 0.0
    one_scale: bool = False
    init: Annotated[str, ("uniform", "gaussian")] = "uniform"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.layers:
            raise UserError('LoRA: layers is empty, expected names of layers such as ("query", "value")')

    def scale(self, rank: int | jax.Array) -> float | jax.Array:
        """Returns s for an adapter of that rank."""
        rank = self.rank if self.one_scale else rank
        return self.alpha / (rank**0.5 if self.rank_stabilized else rank)

    def initial_a(self, size: int) -> nn.initializers.Initializer:
        """Returns the initialiser of a, for a matrix with ``size`` inputs."""
        return torch_uniform(size) if self.init == "uniform" else nn.initializers.normal(1 / self.rank)

    @contextlib.contextmanager
    def adapting(self, train: bool) -> Iterator[None]:
        """Adapts the layers of every network that is called or initialised in its body.

        Raises:
            UserError: no layer has one of the names, or a layer cannot be adapted.
        """
        seen, used = [], set()
        with nn.intercept_methods(functools.partial(self._intercept, train, seen, used)):
            yield
        if seen and (unused := [name for name in self.layers if name not in used]):
            names = ", ".join(dict.fromkeys(path[-1] for path in seen))
            raise UserError(f"LoRA: layers: the network has no {', '.join(unused)}, expected all, or some of {names}")

    def _intercept(self, train, seen, used, call, args, kwargs, context):
        outputs, layer = call(*args, **kwargs), context.module
        if context.method_name != "__call__" or not isinstance(layer, _LINEAR):
            return outputs
        seen.append(layer.path)
        names = [name for name in self.layers if self._is_named(layer, name)]
        used.update(names)
        return outputs + self._low_rank(layer, args[0], train).astype(outputs.dtype) if names else outputs

    def _is_named(self, layer, name):
        path = "/".join(layer.path)
        if name == "all":
            return not _is_head(layer)
        return layer.path[-1] == name or fnmatch.fnmatchcase(path, name)

    def _low_rank(self, layer, inputs, train):
        """Returns the adapter's outputs; its params are in the layer's scope, after the layer's own params."""
        path, *inner, outer = "/".join(layer.path), *layer.get_variable("params", "kernel").shape
        size = math.prod(inner)
        if getattr(layer, "groups", 1) > 1:
            raise UserError(f"LoRA: layers: {path} is a convolution in {layer.groups} groups, expected one")
        if self.rank > min(size, outer):
            raise UserError(f"LoRA: rank {self.rank}: layer {path} is {size} x {outer}, expected at most the smaller")
        a = layer.scope.param("lora_a", self.initial_a(size), (*inner, self.rank))
        b = layer.scope.param("lora_b", nn.initializers.zeros, (self.rank, outer))
        scale = layer.scope.param(SCALE, nn.initializers.constant(self.scale(self.rank)), (self.rank,))
        if self.dropout and train and layer.has_rng("dropout"):
            keep = jax.random.bernoulli(layer.make_rng("dropout"), 1 - self.dropout, inputs.shape)
            inputs = jnp.where(keep, inputs / (1 - self.dropout), 0).astype(inputs.dtype)
        inputs, a, b, scale = cast((inputs, a, b, scale), layer.dtype)
        return (layer.multiply(inputs, a) * scale) @ b


def adapted(adapters: LoRA | None, train: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Returns a context that adds the adapters, if any, to networks that are called in it."""
    return contextlib.nullcontext() if adapters is None else adapters.adapting(train)


class Adapter(NamedTuple):
    """The adapter of a layer, as matrices; for a convolution, ``in`` are the entries of a patch."""

    a: jax.Array  # [in, r]
    b: jax.Array  # [r, out]
    scale: jax.Array  # [r]

    @property
    def product(self) -> jax.Array:
        """The matrix [in, out] that the adapter adds to the layer's."""
        return (self.a * self.scale) @ self.b


def adapters(params: PyTree) -> dict[str, Adapter]:
    """Returns the adapters of a network, by the paths of their layers."""
    leaves, end = masks.by_path(params), "/lora_a"
    layers = [path.removesuffix(end) for path in leaves if path.endswith(end)]
    return {
        layer: Adapter(
            leaves[layer + end].reshape(-1, leaves[layer + end].shape[-1]),
            leaves[f"{layer}/lora_b"],
            leaves[f"{layer}/{SCALE}"],
        )
        for layer in layers
    }


def with_adapters(params: PyTree, new: Mapping[str, Adapter]) -> PyTree:
    """Returns the params with the given adapters, by layer."""
    return _with_leaves(params, {f"{layer}/{name}": leaf for layer, adapter in new.items() for name, leaf in (
        ("lora_a", adapter.a), ("lora_b", adapter.b), (SCALE, adapter.scale))})  # fmt: skip


def added_to_kernels(params: PyTree, matrices: Mapping[str, jax.Array]) -> PyTree:
    """Returns the params with the given matrices [in, out], by layer, added to the kernels."""
    leaves = masks.by_path(params)
    return _with_leaves(
        params, {f"{layer}/kernel": leaves[f"{layer}/kernel"].reshape(m.shape) + m for layer, m in matrices.items()}
    )


def _with_leaves(params, new):
    leaves = masks.by_path(params)
    return masks.replace(params, {path: leaf.reshape(leaves[path].shape) for path, leaf in new.items()})


def merged(variables: Variables) -> Variables:
    """Returns the variables of the network without adapters, with their products added to the kernels."""
    found = adapters(variables.params)
    params = added_to_kernels(variables.params, {layer: adapter.product for layer, adapter in found.items()})
    kept = {path: leaf for path, leaf in masks.by_path(params).items() if not is_of_adapter(path)}
    return variables._replace(params=unflatten_dict(kept, sep="/"))


def is_of_adapter(path: str) -> bool:
    """Returns whether a path of a param, such as ``params/block_0/query/lora_a``, is of an adapter."""
    return path.rpartition("/")[2] in (*masks.FACTORS, SCALE)


def _is_head(layer):
    return layer.part == "head" if isinstance(layer, Dense) and layer.part else layer.path[:1] == ("head",)
