"""A network's variables as a list of arrays in the order of its layers, which is how JAX and PyTorch exchange them.

JAX is imported where it is used, because processes that time PyTorch import this file too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedjax_collapse import Model, Variables


def arrays_in_order(model: "Model", variables: "Variables") -> list[np.ndarray]:
    """Parameters, then running statistics, of a ``Model`` in the order of its layers; kernels are [..., in, out]."""
    arrays = dict(_leaves(variables._asdict()))
    return [np.asarray(arrays[path]) for path in _paths_in_order(model)]


def variables_from(model: "Model", arrays: list[np.ndarray]) -> "Variables":
    """Returns the variables of these arrays; the inverse of ``arrays_in_order``."""
    import jax.numpy as jnp

    from fedjax_collapse.core.records import Variables

    variables = {"params": {}, "batch_stats": {}}
    for path, array in zip(_paths_in_order(model), arrays, strict=True):
        tree = variables
        for name in path[:-1]:
            tree = tree.setdefault(name, {})
        tree[path[-1]] = jnp.asarray(array)
    return Variables(**variables)


def _paths_in_order(model):
    import jax
    import jax.numpy as jnp

    paths = []

    def init(key):  # JAX sorts the keys of what it returns; here they are still in the order of their making
        made = model.module.init(
            key, jnp.zeros((1, *model.input_shape), model.input_dtype), jnp.ones(1, bool), train=False
        )
        for collection in ("params", "batch_stats"):
            paths.extend(path for path, _ in _leaves({collection: made.get(collection, {})}))

    jax.eval_shape(init, jax.random.key(0))
    return paths


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
