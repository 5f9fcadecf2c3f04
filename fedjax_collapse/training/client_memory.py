"""The methods' memory at a client, of which nothing is stored for params that all clients always share.

Many methods remember a model or a sum of updates, with such params (``FedAvg.common_to_clients``), for example the base
of a network with adapters. Their memory never differs from the result of ``init_memory``: None is stored in their
place, and a client's round fills them in. Exceptions are ``Method.stores_common``, and memory that the server reads or
writes.
"""

from collections.abc import Mapping

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, Variables
from fedjax_collapse.methods.base import Method, Setup, initial_state, takes_setup
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.algorithm import FedAvg


def initial(algorithm: FedAvg, variables: Variables, setup: Setup) -> dict[str, PyTree]:
    """Returns the stored memory of each method before a client's first round."""
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
    """Returns a client's memory in its round, from the stored memory and the server's variables."""
    filled, setup = dict(memory), Setup(algorithm.local_training, algorithm.private_part, model)
    for name, method in algorithm.methods.items():
        if name in memory and None in jax.tree.leaves(memory[name], is_leaf=_is_none):
            filled[name] = masks.fill(memory[name], _made(method, variables, setup))
    return filled


def stored(memory: Mapping[str, PyTree], like: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Returns the part of a client's memory that is stored after its round; ``like`` was stored before it."""
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
