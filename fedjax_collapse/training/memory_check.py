"""A check that the part of a method's memory that is not stored does not change (``client_memory``)."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples, UserError
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training import client_memory, local, server
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.outline import client_of, outline_of

_WEIGHT = 0.01  # of every param


def check_memory(algorithm: FedAvg, model: Model, examples: Examples) -> None:
    """Raises UserError if a method changes the part of its memory that is not stored.

    Methods of this library are known to be correct. With any other, a client's round is computed on a batch and an
    outline of the network.
    """
    algorithm = algorithm.enabled()
    if all(type(method).__module__.startswith("fedjax_collapse.") for method in algorithm.methods.values()):
        return
    for path in changed_memory(algorithm, model, examples):
        name, _, path = path.partition("/")
        raise UserError(
            f"method {name}: a client's round changes {path} in its memory, which belongs to a param that no client "
            "changes and is not stored; expected the value that init_memory gives it"
        )


def changed_memory(algorithm: FedAvg, model: Model, examples: Examples) -> list[str]:
    """Returns the paths, after the methods' names, of memory that a round changes but that is not stored."""
    model = outline_of(model)
    shapes = model.real.variable_shapes()
    variables = jax.tree.map(lambda leaf: jnp.full(leaf.shape, _WEIGHT, leaf.dtype), shapes)
    received, state = server.init(algorithm, model, variables, 1)
    before = client_memory.whole(algorithm, model, variables, state.memory)
    if len(jax.tree.leaves(before)) == len(jax.tree.leaves(state.memory)):
        return []
    count = min(algorithm.training.batch_size, len(examples.labels))
    examples = examples._replace(inputs=examples.inputs[:count], labels=examples.labels[:count], identities=None)
    of_round = examples, received, jnp.zeros((), jnp.int32), client_of(algorithm, examples, state)
    run = jax.jit(lambda *of_round: local.run_whole(local.LocalContext(algorithm, model, *of_round)).state.memory)
    after = masks.by_path(run(*of_round))
    stored = masks.by_path(state.memory)
    constant = {path: leaf for path, leaf in masks.by_path(before).items() if path not in stored}
    return [path for path, leaf in constant.items() if np.any(leaf != after[path])]
