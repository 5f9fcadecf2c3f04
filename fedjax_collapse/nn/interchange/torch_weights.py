"""Converts a network's variables to a list of arrays in the order of its layers, which JAX and PyTorch exchange."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_collapse.core.records import Variables
from fedjax_collapse.nn.model import Model

TO_TORCH = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}  # by the number of axes: the axes of our array in PyTorch's order
FROM_TORCH = {ndim: tuple(np.argsort(axes).tolist()) for ndim, axes in TO_TORCH.items()}


def arrays_in_order(model: Model, variables: Variables) -> list[np.ndarray]:
    """Returns params, then running statistics, of a ``Model`` in the order of layers; kernels are [..., in, out]."""
    arrays = flatten_dict(variables._asdict())
    return [np.asarray(arrays[path]) for path in paths_in_order(model)]


def variables_from(model: Model, arrays: list[np.ndarray]) -> Variables:
    """Returns the variables of these arrays; the inverse of ``arrays_in_order``."""
    made = unflatten_dict(dict(zip(paths_in_order(model), map(jnp.asarray, arrays), strict=True)))
    return Variables(**{"params": {}, "batch_stats": {}} | made)


def paths_in_order(model: Model) -> list[tuple[str, ...]]:
    """Returns the paths of a model's arrays in the order of ``arrays_in_order``."""
    paths = []

    def init(key):  # JAX sorts the keys of its outputs; here they are in the order of creation
        inputs = jnp.zeros((1, *model.input_shape), model.input_dtype)
        made = model.module.init(key, inputs, jnp.ones(1, bool), train=False)
        paths.extend(flatten_dict({name: made.get(name, {}) for name in ("params", "batch_stats")}))

    jax.eval_shape(init, jax.random.key(0))
    return paths
