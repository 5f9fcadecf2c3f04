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
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.algorithm import FedAvg

_OF_ALL = ("dispatch", "own_parts", "init_memory_among")  # hooks that see the whole memory of all clients, or make it


def initial(algorithm: FedAvg, model: Model, variables: Variables) -> dict[str, PyTree]:
    """Returns the memory of each method before a client's first round, as it is stored."""
    own = variables
    if not algorithm.having("first_model"):  # which may change frozen params
        own = masks.without(algorithm.common_to_clients(model, always=True), variables)
    return {
        name: _made(method, model, variables if method.stores_common or any(map(method.has, _OF_ALL)) else own)
        for name, method in algorithm.methods.items()
    }


def whole(algorithm: FedAvg, model: Model, variables: Variables, memory: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns the memory that a client has in its round, from what is stored and the server's variables."""
    filled = dict(memory)
    for name, method in algorithm.methods.items():
        if name in memory and None in jax.tree.leaves(memory[name], is_leaf=_is_none):
            filled[name] = masks.fill(memory[name], _made(method, model, variables))
    return filled


def stored(memory: Mapping[str, PyTree], like: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns what is stored of a client's memory after its round; ``like`` is what was stored before it."""
    return {
        name: jax.tree.map(lambda old, new: None if old is None else new, like[name], new, is_leaf=_is_none)
        for name, new in memory.items()
    }


def _made(method: Method, model: Model, variables: Variables) -> PyTree:
    """Returns the result of the method's ``init_memory``; None where its params are None."""
    if method.remembered is not None:
        mask = masks.by_path(model.mask(method.remembered).params)
        params = zip(mask, jax.tree.leaves(variables.params, is_leaf=_is_none), strict=True)
        variables = {path: leaf for path, leaf in params if mask[path]}
    return method.init_memory(variables, model.initial_shapes()._replace(levels=()))


def _is_none(leaf):
    return leaf is None
