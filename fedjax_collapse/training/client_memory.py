"""The methods' memory at a client, and what of it is stored: nothing of params that are always the same for all.

Such params (``FedAvg.common_to_clients``), as the base of a network with adapters, are in what many methods remember: a
model, or a sum of updates. There they stay what ``init_memory`` makes of them, so that None is stored in their place;
in its round a client has them from ``init_memory``. ``Method.stores_common`` are exceptions, and so is memory that the
server reads or writes.
"""

from collections.abc import Mapping

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, Variables
from fedjax_collapse.methods.base import Method, Setup, initial_state, takes_setup
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.algorithm import FedAvg


def initial(algorithm: FedAvg, variables: Variables, setup: Setup) -> dict[str, PyTree]:
    """Returns the memory of each method before a client's first round, as it is stored."""
    own = variables
    if not algorithm.having("apply", "start"):  # which may change frozen params
        own = masks.without(algorithm.common_to_clients(setup.model, always=True), variables)

    def stores_all(method):
        return method.stores_common or method.has("dispatch") or takes_setup(method.init_memory)

    return {
        name: _made(method, variables if stores_all(method) else own, setup)
        for name, method in algorithm.methods.items()
    }


def whole(algorithm: FedAvg, model: Model, variables: Variables, memory: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns the memory that a client has in its round, from what is stored and the server's variables."""
    filled, setup = dict(memory), Setup(algorithm.local_training, algorithm.private_part, model)
    for name, method in algorithm.methods.items():
        if name in memory and None in jax.tree.leaves(memory[name], is_leaf=_is_none):
            filled[name] = masks.fill(memory[name], _made(method, variables, setup))
    return filled


def stored(memory: Mapping[str, PyTree], like: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns what is stored of a client's memory after its round; ``like`` is what was stored before it."""
    return {
        name: jax.tree.map(lambda old, new: None if old is None else new, like[name], new, is_leaf=_is_none)
        for name, new in memory.items()
    }


def _made(method: Method, variables: Variables, setup: Setup) -> PyTree:
    """Returns the result of the method's ``init_memory``, None where its params are None; () without the hook."""
    if not method.has("init_memory"):
        return ()
    if method.remembered is not None:
        mask = masks.by_path(setup.model.mask(method.remembered).params)
        params = zip(mask, jax.tree.leaves(variables.params, is_leaf=_is_none), strict=True)
        variables = {path: leaf for path, leaf in params if mask[path]}
    return initial_state(method.init_memory, variables, setup)


def _is_none(leaf):
    return leaf is None
