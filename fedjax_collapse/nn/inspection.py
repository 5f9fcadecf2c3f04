"""What is inside a network, without computing anything."""

import functools
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.model import Model
from fedjax_collapse.nn.convolution import choose_lowering
from fedjax_collapse.nn.layers import Conv


def count_lowerings(model: Model, batch_size: int) -> dict[str, int]:
    """How many convolutions of the network take each lowering, in batches of that size (``convolution.py``)."""
    counts = Counter()

    def count(call, args, kwargs, context):
        conv = context.module
        if isinstance(conv, Conv) and context.method_name == "__call__":
            shape, size = args[0].shape, conv.kernel_size
            kernel = (size, size, shape[-1] // conv.groups, conv.features)
            counts[choose_lowering(shape, kernel, conv.convolution, conv.dtype or args[0].dtype)] += 1
        return call(*args, **kwargs)

    images = jax.ShapeDtypeStruct((batch_size, *model.input_shape), jnp.float32)
    mask = jax.ShapeDtypeStruct((batch_size,), bool)
    with nn.intercept_methods(count):
        jax.eval_shape(functools.partial(model.module.init, train=False), jax.random.key(0), images, mask)
    return dict(sorted(counts.items()))
