"""Parts of a network by name: params that stay at a client, that a phase trains, or that are never trained.

A part is a mask: a tree of Python bools with the structure of the network's ``Variables``. It is static, so selecting
by it costs nothing in a compiled program. ``Model.mask(name)`` makes one:

    none, all    nothing, everything
    batch_norm   scale, shift and running statistics of every layer that has running statistics
    head         the classifier: the layers with ``part="head"`` (such as those of ``nn/heads``), otherwise the
                 top-level layer called ``head``
    body         everything but the head
    adapters     lora_a and lora_b, the factors of low-rank adapters (``nn/adapters.py``); each is a part as well, and
                 lora_scale, which is of the base
    adapted      the kernels of the layers that have adapters
    base         the params that are neither of the adapters nor of the head
    a path       of a layer or a parameter, such as ``Dense_0`` or ``Dense_0/bias``
    a+b          the union of a and b
    a - b        a without b, as in ``all - head``; with spaces, and evaluated before any +
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fedjax_collapse.core.records import PyTree, UserError, Variables

Paths = Sequence[tuple[str, ...]]
FACTORS = ("lora_a", "lora_b")  # the params of an adapter that are trained


def named(name: str, variables: Variables, named_layers: Mapping[str, Paths]) -> Variables:
    """Returns the mask of a named part.

    Args:
        name: the part, in the syntax above.
        variables: the network's variables, or their shapes.
        named_layers: the paths of the layers that declare a part, by part.

    Raises:
        UserError: the network has no such part.
    """
    return functools.reduce(union, (_without(part, variables, named_layers) for part in name.split("+")))


def union(one: PyTree, other: PyTree) -> PyTree:
    """Returns the union of two masks."""
    return jax.tree.map(lambda a, b: a or b, one, other)


def invert(mask: PyTree) -> PyTree:
    """Returns the complement of a mask."""
    return jax.tree.map(lambda is_part: not is_part, mask)


def minus(one: PyTree, other: PyTree) -> PyTree:
    """Returns the part of a mask that is not in the other."""
    return jax.tree.map(lambda a, b: a and not b, one, other)


def where(mask: PyTree, yes: PyTree, no: PyTree) -> PyTree:
    """Returns the leaves of ``yes`` inside the part and of ``no`` elsewhere."""
    return jax.tree.map(lambda is_part, a, b: a if is_part else b, mask, yes, no)


def zero(mask: PyTree, tree: PyTree) -> PyTree:
    """Returns the tree with zeros in the part."""
    return jax.tree.map(lambda is_part, leaf: jax.numpy.zeros_like(leaf) if is_part else leaf, mask, tree)


def without(mask: PyTree, tree: PyTree) -> PyTree:
    """Returns the tree with None, which has no leaves, in the part."""
    return jax.tree.map(lambda is_part, leaf: None if is_part else leaf, mask, tree)


def fill(tree: PyTree, other: PyTree) -> PyTree:
    """Returns a tree ``without`` a part, with the leaves of ``other`` in it."""
    return jax.tree.map(
        lambda leaf, filling: filling if leaf is None else leaf, tree, other, is_leaf=lambda leaf: leaf is None
    )


def select(mask: PyTree, tree: PyTree) -> dict[str, jax.Array]:
    """Returns the leaves of the part only, by path."""
    paired = zip(by_path(mask).items(), jax.tree.leaves(tree), strict=True)
    return {path: leaf for (path, is_part), leaf in paired if is_part}


def replace(tree: PyTree, leaves: dict[str, jax.Array]) -> PyTree:
    """Returns the tree with the given leaves, by path, in place of its own; the same tree if there are none."""
    if not leaves:
        return tree
    replaced = [leaves.get(path, leaf) for path, leaf in by_path(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), replaced)


def _without(name, variables, named_layers):
    first, *others = (_single(part.strip(), variables, named_layers) for part in name.split(" - "))
    return functools.reduce(minus, others, first)


def _single(name, variables, named_layers):
    match name:
        case "none" | "all":
            return jax.tree.map(lambda _: name == "all", variables)
        case "batch_norm":
            return _batch_norm(variables)
        case "head":
            return _below(named_layers.get("head") or [("head",)], name, variables)
        case "body":
            return invert(_single("head", variables, named_layers))
        case "adapters":
            return functools.reduce(union, (_called(factor, variables) for factor in FACTORS))
        case "lora_a" | "lora_b" | "lora_scale":
            return _called(name, variables)
        case "adapted":
            adapters = jax.tree.leaves_with_path(_called("lora_a", variables).params)
            kernels = [(*(e.key for e in path[:-1]), "kernel") for path, is_part in adapters if is_part]
            return _below(kernels, name, variables)
        case "base":
            trained = union(*(_single(part, variables, named_layers) for part in ("adapters", "head")))
            return Variables(invert(trained.params), jax.tree.map(lambda _: False, variables.batch_stats))
    return _below([tuple(name.split("/"))], name, variables)


def _called(name, variables):
    """Returns the mask of all params of that name."""
    mask = jax.tree.map_with_path(lambda path, _: path[-1].key == name, variables.params)
    if not any(jax.tree.leaves(mask)):
        raise UserError(f"part {name}: the network has no adapters, expected Model(..., adapters=LoRA(...))")
    return Variables(mask, jax.tree.map(lambda _: False, variables.batch_stats))


def _batch_norm(variables):
    layers = {path[:-1] for path, _ in jax.tree.leaves_with_path(variables.batch_stats)}
    if not layers:
        raise UserError("part batch_norm: the network has no BatchNorm")
    params = jax.tree.map_with_path(lambda path, _: path[:-1] in layers, variables.params)
    return Variables(params, jax.tree.map(lambda _: True, variables.batch_stats))


def _below(layers, name, variables):
    """Returns the mask of everything inside the given layers."""

    def is_below(path, _):
        names = tuple(str(entry.key) for entry in path[1:])  # after the field of Variables
        return any(names[: len(layer)] == layer for layer in layers)

    mask = jax.tree.map_with_path(is_below, variables)
    if not any(jax.tree.leaves(mask.params)):
        top = ", ".join(variables.params)
        hint = "expected none, all, batch_norm, head, body, or the path of a layer"
        if name == "head":
            hint = 'name the classifier "head", or set part="head" in it'
        raise UserError(f"part {name}: the network has no such layer, at the top it has {top}; {hint}")
    return mask


def by_path(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves of a tree by path, such as ``params/Dense_0/bias``, in the tree's order."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
