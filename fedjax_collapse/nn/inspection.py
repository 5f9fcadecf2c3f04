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
    dtype = jnp.float32 if jnp.issubdtype(model.input_dtype, jnp.floating) else model.input_dtype
    images = jax.ShapeDtypeStruct((batch_size, *model.input_shape), dtype)
    mask = jax.ShapeDtypeStruct((batch_size,), bool)
    init, found = functools.partial(model.module.init, train=False), []
    for conv, inputs in _calls(Conv, lambda: jax.eval_shape(init, jax.random.key(0), images, mask)):
        shape, size, how = inputs.shape, conv.kernel_size, conv.convolution
        kernel, dtype = (size, size, shape[-1] // conv.groups, conv.features), conv.dtype or inputs.dtype
        found.append((how.layer(shape, kernel, dtype), choose_lowering(shape, kernel, how, dtype)))
    return found


@functools.lru_cache(maxsize=256)
def layers_of_class(model: Model, kind: type[nn.Module]) -> list[nn.Module]:
    """Returns the network's layers of a class, in order of use, without their params."""
    variables = model.variable_shapes()
    return [layer for layer, _ in _calls(kind, lambda: model.output_shapes(variables))]


def _calls(kind, run):
    """Returns the layers of a class that ``run`` calls, with their inputs."""
    found = []

    def notice(call, args, kwargs, context):
        if isinstance(context.module, kind) and context.method_name == "__call__":
            found.append((context.module.clone(parent=None, name=context.module.name), args[0]))
        return call(*args, **kwargs)

    with nn.intercept_methods(notice):
        run()
    return found


def count_lowerings(model: Model, batch_size: int) -> dict[str, int]:
    """Returns the number of convolutions that use each lowering at that batch size (``convolution.py``)."""
    return dict(sorted(Counter(lowering for _, lowering in convolutions(model, batch_size)).items()))
