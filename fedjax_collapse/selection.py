"""Parts of a network by name: what stays private at a client, what is never trained.

A part is a mask: a tree of Python bools in the structure of the network's ``Variables``, known when code is compiled,
so that choosing by it costs nothing. Predicates go by structure and by names of layers:

    batch_norm   scale, shift and running statistics of every layer that has running statistics
    head         the classifier: the top-level layer called ``head``, else the last ``Dense``
"""

import re

import jax

from fedjax_collapse.records import Key, PyTree, UserError, Variables


def part(name: str, variables: Variables) -> Variables:
    """The mask of ``none``, ``batch_norm`` or ``head``.

    Raises:
        UserError: the network has no such part.
    """
    if name == "none":
        return jax.tree.map(lambda _: False, variables)
    return {"batch_norm": _batch_norm, "head": _head}[name](variables)


def choose(mask: PyTree, yes: PyTree, no: PyTree) -> PyTree:
    """The leaves of ``yes`` in the part, those of ``no`` elsewhere."""
    return jax.tree.map(lambda is_part, a, b: a if is_part else b, mask, yes, no)


def pick(mask: PyTree, tree: PyTree) -> dict[str, jax.Array]:
    """The leaves of the part alone, by path."""
    named = zip(_paths(mask), jax.tree.leaves(mask), jax.tree.leaves(tree), strict=True)
    return {path: leaf for path, is_part, leaf in named if is_part}


def put(mask: PyTree, tree: PyTree, picked: dict[str, jax.Array]) -> PyTree:
    """The tree with the part's leaves replaced by those that were picked."""
    leaves = [picked.get(path, leaf) for path, leaf in zip(_paths(mask), jax.tree.leaves(tree), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def orthogonal_head(variables: Variables, key: Key) -> Variables:
    """The variables with a new classifier weight: orthonormal columns (rows, if there are more classes than features).

    For FedUV's "Freeze" with an orthogonal classifier, which in its released code is only random and so nearly
    orthogonal. The bias stays.
    """
    name = _head_name(variables)
    kernel = variables.params[name]["kernel"]
    kernel = jax.nn.initializers.orthogonal()(key, kernel.shape, kernel.dtype)
    return variables._replace(params={**variables.params, name: {**variables.params[name], "kernel": kernel}})


def _batch_norm(variables):
    layers = {path[:-1] for path, _ in jax.tree.leaves_with_path(variables.batch_stats)}
    if not layers:
        raise UserError("part batch_norm: the network has no BatchNorm, so there is nothing to keep private")
    params = jax.tree.map_with_path(lambda path, _: path[:-1] in layers, variables.params)
    return Variables(params, jax.tree.map(lambda _: True, variables.batch_stats))


def _head(variables):
    name = _head_name(variables)
    params = {layer: jax.tree.map(lambda _, is_head=layer == name: is_head, p) for layer, p in variables.params.items()}
    return Variables(params, jax.tree.map(lambda _: False, variables.batch_stats))


def _head_name(variables):
    numbers = {name: int(match[1]) for name in variables.params if (match := re.fullmatch(r"Dense_(\d+)", name))}
    if "head" not in variables.params and not numbers:
        raise UserError("part head: the network has no top-level layer called head or Dense")
    return "head" if "head" in variables.params else max(numbers, key=numbers.get)


def _paths(tree):
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]
