"""Whether padding rows change what a network makes of the true ones, found by running it on a few examples.

A client's last batch is filled up with rows that ``Batch.mask`` leaves out. A layer that looks across the batch without
that mask, as ``flax.linen.BatchNorm`` does by default, would count them in its moments.
"""

import dataclasses
import functools
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError

from fedjax_collapse.core.options import WithOptions
from fedjax_collapse.core.records import Examples, Key, PyTree, UserError, Variables
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.nn.model import Model

_ROWS = 4  # true ones, and as many of padding
_ROUNDING = 1e-4  # relative, of one program on other padding: on a CPU it is none at all
_REORDERING = 0.1  # of another program, for fewer rows: layers of bfloat16 that stand one on the other
_DEEP = 20  # layers from which on gradients, which would compile for many seconds, are not compared
_CHEAP = {"xla_backend_optimization_level": 0}  # the program runs once or twice
_REMEDY = (
    "a layer looks across the batch without its mask, as flax.linen.BatchNorm does; take fedjax_collapse.nn.layers."
    "BatchNorm()(inputs, mask, train), or give the layer the mask"
)
_found: dict[Model, str] = {}  # what is wrong with those that were tried


def check_padding(model: Model, examples: Examples) -> None:
    """Raises UserError if padding rows change outputs, running statistics or gradients of the true rows.

    Networks of the library are known to be right. Any other is compiled with little optimisation and run on eight
    examples and on four, in training and in evaluation; once, however many runs have it.
    """
    if _is_known(model.module):
        return
    if model not in _found:
        _found[model] = _problem(model, examples)
    if _found[model]:
        raise UserError(f"network {type(model.module).__name__}: {_found[model]}: {_REMEDY}")


def _is_known(value: Any) -> bool:
    """Whether the module, or what it is made with, is the library's alone."""
    if isinstance(value, WithOptions):
        return _is_known(value.function)
    if isinstance(value, flax.linen.Module):
        fields = (field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name"))
        return _is_known(type(value)) and all(_is_known(getattr(value, name)) for name in fields)
    if isinstance(value, (tuple, list)):
        return all(map(_is_known, value))
    return not callable(value) or str(getattr(value, "__module__", "")).startswith("fedjax_collapse.")


def _problem(model, examples):
    """What padding rows change, in words; empty where they change nothing."""
    variables, key = _somewhere(model), jax.random.key(1)
    is_deep = sum(leaf.ndim > 1 for leaf in jax.tree.leaves(variables.params)) >= _DEEP
    whole, alone = _first(examples, 2 * _ROWS), _first(examples, _ROWS)
    run, uses_key = _compile(_forward if is_deep else _forward_and_backward, model, variables, whole, key)
    found = run(variables, whole, key)
    if wrong := _difference(found, run(variables, _with_other_padding(whole, examples), key), _ROUNDING):
        return f"what padding rows hold changes {wrong}"
    try:  # of other numbers of rows nothing random is the same
        if uses_key:
            key = None
            found = _compile(_forward, model, variables, whole, key)[0](variables, whole, key)
        expected = _compile(_forward, model, variables, alone, key)[0](variables, alone, key)
    except InvalidRngError:  # the network cannot do without
        return ""
    wrong = _difference(found, expected, _REORDERING)
    return wrong and f"padding rows change {wrong}"


def _somewhere(model):
    """Variables near the initial ones, where no layer is left out by a weight of 0; on the host."""
    variables, rng = jax.device_get(model.init(jax.random.key(0))), np.random.default_rng(0)

    def move(leaf):
        return leaf + (0.1 * (np.sqrt(np.mean(leaf**2)) or 1) * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return variables._replace(params=jax.tree.map(move, variables.params))


def _first(examples, count):
    """So many of the examples, all over again where there are fewer; on the host."""
    rows = np.arange(count) % len(examples.labels)
    inputs, labels = (np.asarray(array[:count])[rows] for array in (examples.inputs, examples.labels))
    return examples._replace(inputs=inputs, labels=labels)


def _with_other_padding(whole, examples):
    """The last of the examples, of numbers that may be no others; else other numbers."""
    inputs = whole.inputs.copy()
    if np.issubdtype(inputs.dtype, np.floating):
        inputs[_ROWS:] = 2 * inputs[_ROWS:] + 1
    elif examples.mean is not None:
        inputs[_ROWS:] = ~inputs[_ROWS:]
    else:
        last = np.asarray(examples.inputs[-_ROWS:])
        inputs[_ROWS:] = last[np.arange(_ROWS) % len(last)]
    return whole._replace(inputs=inputs)


def _compile(effects, model, variables, examples, key):
    """The effects as a program, and whether it uses the key."""
    traced = jax.jit(functools.partial(effects, model)).trace(variables, examples, key)
    jaxpr = traced.jaxpr.jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return traced.lower().compile(compiler_options=_CHEAP), key is not None and id(jaxpr.invars[-1]) in used


def _forward(model: Model, variables: Variables, examples: Examples, key: Key | None) -> dict[str, PyTree]:
    """What training and evaluation see of the first ``_ROWS``, all others being padding, and what becomes of running
    statistics."""
    rows = jnp.arange(len(examples.labels))
    batch = get_batch(examples, rows, rows < _ROWS)
    with jax.default_matmul_precision("highest"):
        trained, stats = model.apply(variables, batch, train=True, key=key)
        evaluated, _ = model.apply(variables, batch, train=False)
    modes = {"": trained, " in evaluation": evaluated}
    found = {
        f"{name} of the true rows{mode}": getattr(outputs, name)[:_ROWS].astype(jnp.result_type(float))
        for mode, outputs in modes.items()
        for name in ("features", "logits")
    }
    return found | {"running statistics": jax.tree.map(jnp.subtract, stats, variables.batch_stats)}


def _forward_and_backward(model, variables, examples, key):
    """The same, and the gradient of some function of the true rows' outputs."""

    def project(params):
        found = _forward(model, variables._replace(params=params), examples, key)
        own = [found[f"{name} of the true rows"] for name in ("features", "logits")]
        directions = [np.random.default_rng(0).standard_normal(leaf.shape) for leaf in own]
        return sum(jnp.sum(leaf * direction) for leaf, direction in zip(own, directions, strict=True)), found

    gradient, found = jax.grad(project, has_aux=True)(variables.params)
    return found | {"gradients": gradient}


def _difference(found, expected, tolerance):
    """The first of the expected effects that differ, and by how much of their norm; empty if none does."""
    for name in sorted(expected, key="gradients".__eq__):  # which say least of the cause
        first, second = (
            np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)] or [np.zeros(0)])
            for tree in (found[name], expected[name])
        )
        norm, apart = (float(np.linalg.norm(values)) for values in (second, first - second))
        if apart > tolerance * norm:
            return f"{name} by {apart / norm:.0%}" if norm else name
    return ""
