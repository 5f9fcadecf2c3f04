"""The methods' memory at a client, and what of it is stored: nothing of params that are always the same for all.

Such params (``FedAvg.common_to_clients``), as the base of a network with adapters, are in what many methods remember: a
model, or a sum of updates. There a leaf that belongs to one of them by its path is the param itself, or a constant such
as 0, and stays what it is, so that None is stored in its place; in its round a client has it from ``init_memory``. A
leaf that a method computes from such a param is stored, and so is memory that the server reads or writes.
"""

from collections.abc import Mapping

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, Variables
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.jaxprs import dependences

_OF_ALL = ("dispatch", "own_parts", "init_memory_among")  # hooks that see the whole memory of all clients, or make it


def initial(algorithm: FedAvg, model: Model, variables: Variables) -> dict[str, PyTree]:
    """Returns the memory of each method before a client's first round, as it is stored."""
    memory = {name: _made(method, model, variables) for name, method in algorithm.methods.items()}
    if algorithm.having("first_model"):  # frozen params may change after this
        return memory
    common = masks.select(algorithm.common_to_clients(model, always=True), variables)
    for name, method in algorithm.methods.items() if common else ():
        if jax.tree.leaves(memory[name]) and not any(map(method.has, _OF_ALL)):
            mask = _not_stored(method, model, variables, memory[name], set(common))
            memory[name] = masks.without(mask, memory[name])
    return memory


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


def _made(method, model, variables):
    return method.init_memory(_given(method, model, variables), _shapes(model))


def _shapes(model):
    return model.initial_shapes()._replace(levels=())  # found once for each network


def _given(method, model, variables):
    """Returns what the method's ``init_memory`` receives of the model."""
    if method.remembered is None:
        return variables
    return masks.select(model.mask(method.remembered).params, variables.params)


def _not_stored(method: Method, model: Model, variables: Variables, memory: PyTree, common: set[str]) -> PyTree:
    """Returns the mask of the memory's leaves that are not stored."""
    given = _given(method, model, variables)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), given)
    jaxpr = jax.make_jaxpr(lambda given: method.init_memory(given, _shapes(model)))(shapes).jaxpr
    names = dict(zip(jaxpr.invars, masks.by_path(given), strict=True))
    needs = dependences(jaxpr, [frozenset([name]) for name in names.values()])
    sizes = {path.partition("/")[2]: (path in common, leaf.shape) for path, leaf in masks.by_path(variables).items()}
    found = []
    for (path, leaf), variable, needed in zip(masks.by_path(memory).items(), jaxpr.outvars, needs, strict=True):
        param = max((name for name in sizes if f"/{path}".endswith(f"/{name}")), key=len, default="")
        is_common = sizes.get(param) == (True, leaf.shape)
        is_itself = variable in names and f"/{names[variable]}".endswith(f"/{param}") if needed else True
        found.append(is_common and is_itself)
    return jax.tree.unflatten(jax.tree.structure(memory), found)


def _is_none(leaf):
    return leaf is None
