"""The layers of a network and their shapes, found without computing anything."""

import functools
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.nn.layers import Conv
from fedjax_collapse.nn.lowerings.convolution import Layer, choose_lowering
from fedjax_collapse.nn.model import Model


@functools.lru_cache(maxsize=256)
def convolutions(model: Model, batch_size: int) -> list[tuple[Layer, str]]:
    """Returns the network's convolutions in order of use, each with its lowering at that batch size."""
    found = []

    def notice(call, args, kwargs, context):
        conv = context.module
        if isinstance(conv, Conv) and context.method_name == "__call__":
            shape, size, how = args[0].shape, conv.kernel_size, conv.convolution
            kernel, dtype = (size, size, shape[-1] // conv.groups, conv.features), conv.dtype or args[0].dtype
            found.append((how.layer(shape, kernel, dtype), choose_lowering(shape, kernel, how, dtype)))
        return call(*args, **kwargs)

    dtype = jnp.float32 if jnp.issubdtype(model.input_dtype, jnp.floating) else model.input_dtype
    images = jax.ShapeDtypeStruct((batch_size, *model.input_shape), dtype)
    mask = jax.ShapeDtypeStruct((batch_size,), bool)
    with nn.intercept_methods(notice):
        jax.eval_shape(functools.partial(model.module.init, train=False), jax.random.key(0), images, mask)
    return found


@functools.lru_cache(maxsize=256)
def layers_of_class(model: Model, kind: type[nn.Module]) -> list[nn.Module]:
    """Returns the network's layers of a class, in order of use, without their params."""
    found = []

    def notice(call, args, kwargs, context):
        if isinstance(context.module, kind) and context.method_name == "__call__":
            found.append(context.module.clone(parent=None, name=context.module.name))
        return call(*args, **kwargs)

    variables = model.variable_shapes()
    with nn.intercept_methods(notice):
        model.output_shapes(variables)
    return found


def count_lowerings(model: Model, batch_size: int) -> dict[str, int]:
    """Returns the number of convolutions that use each lowering at that batch size (``convolution.py``)."""
    return dict(sorted(Counter(lowering for _, lowering in convolutions(model, batch_size)).items()))
