"""Checks, on a few examples, that padding rows do not change a network's outputs for the true rows.

A client's last batch is padded with rows that ``Batch.mask`` excludes. A layer that operates across the batch without
this mask, as ``flax.linen.BatchNorm`` does by default, would include them in its moments.
"""

import dataclasses
import functools
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError

from fedjax_collapse.core.records import Examples, Key, PyTree, UserError, Variables
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import WithOptions

_ROWS = 4  # number of true rows, and of padding rows
_ROUNDING = 1e-4  # relative, for one program with other padding; on a CPU there is no difference
_REORDERING = 0.1  # relative, for a program with fewer rows, through several layers of bfloat16
_DEEP = 20  # number of layers from which gradients are not compared, as compiling them takes many seconds
_CHEAP = {"xla_backend_optimization_level": 0}  # the program runs once or twice
_REMEDY = (
    "a layer looks across the batch without its mask, as flax.linen.BatchNorm does; take fedjax_collapse.nn.layers."
    "BatchNorm()(inputs, mask, train), or give the layer the mask"
)
_found: dict[Model, str] = {}  # the problem found in each model, empty if none


def check_padding(model: Model, examples: Examples) -> None:
    """Raises UserError if padding rows change outputs, running statistics or gradients of the true rows.

    Networks of this library are known to be correct. Other networks are compiled with little optimisation and run once
    per process on eight and on four examples, in training and in evaluation mode.
    """
    if _is_known(model.module):
        return
    if model not in _found:
        _found[model] = _problem(model, examples)
    if _found[model]:
        raise UserError(f"network {type(model.module).__name__}: {_found[model]}: {_REMEDY}")


def _is_known(value: Any) -> bool:
    """Returns whether a module and all of its options are from this library."""
    if isinstance(value, WithOptions):
        return _is_known(value.function)
    if isinstance(value, flax.linen.Module):
        fields = (field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name"))
        return _is_known(type(value)) and all(_is_known(getattr(value, name)) for name in fields)
    if isinstance(value, (tuple, list)):
        return all(map(_is_known, value))
    return not callable(value) or str(getattr(value, "__module__", "")).startswith("fedjax_collapse.")


def _problem(model, examples):
    """Returns a description of the effect of padding rows; empty if there is none."""
    variables, key = _perturbed_variables(model), jax.random.key(1)
    is_deep = sum(leaf.ndim > 1 for leaf in jax.tree.leaves(variables.params)) >= _DEEP
    whole, true_only = _first_examples(examples, 2 * _ROWS), _first_examples(examples, _ROWS)
    run, uses_key = _compile(_forward if is_deep else _forward_and_backward, model, variables, whole, key)
    found = run(variables, whole, key)
    if difference := _difference(found, run(variables, _with_other_padding(whole, examples), key), _ROUNDING):
        return f"what padding rows hold changes {difference}"
    try:  # random numbers differ for other numbers of rows, so run without a key
        if uses_key:
            key = None
            found = _compile(_forward, model, variables, whole, key)[0](variables, whole, key)
        expected = _compile(_forward, model, variables, true_only, key)[0](variables, true_only, key)
    except InvalidRngError:  # the network needs a key
        return ""
    difference = _difference(found, expected, _REORDERING)
    return difference and f"padding rows change {difference}"


def _perturbed_variables(model):
    """Returns perturbed initial variables, so that no layer is disabled by a weight of 0; on the host."""
    variables, rng = jax.device_get(model.init(jax.random.key(0))), np.random.default_rng(0)

    def move(leaf):
        return leaf + (0.1 * (np.sqrt(np.mean(leaf**2)) or 1) * rng.standard_normal(leaf.shape)).astype(leaf.dtype)

    return variables._replace(params=jax.tree.map(move, variables.params))


def _first_examples(examples, count):
    """Returns the first ``count`` examples, repeated if there are fewer; on the host."""
    rows = np.arange(count) % len(examples.labels)
    inputs, labels = (np.asarray(array[:count])[rows] for array in (examples.inputs, examples.labels))
    return examples._replace(inputs=inputs, labels=labels)


def _with_other_padding(whole, examples):
    """Replaces the padding rows by changed numbers, or by the last examples for integers without a mean."""
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
    """Compiles ``effects``, and returns whether the program uses the key."""
    traced = jax.jit(functools.partial(effects, model)).trace(variables, examples, key)
    jaxpr = traced.jaxpr.jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return traced.lower().compile(compiler_options=_CHEAP), key is not None and id(jaxpr.invars[-1]) in used


def _forward(model: Model, variables: Variables, examples: Examples, key: Key | None) -> dict[str, PyTree]:
    """Returns outputs of the first ``_ROWS`` rows in training and in evaluation mode, and the update of running
    statistics; all other rows are padding."""
    rows = jnp.arange(len(examples.labels))
    batch = get_batch(examples, rows, rows < _ROWS)
    with jax.default_matmul_precision("highest"):
        trained, stats = model.apply(variables, batch, train=True, key=key)
        evaluated, _ = model.apply(variables, batch, train=False)
    true = _ROWS * (len(batch.mask) // len(rows))
    modes = {"": trained, " in evaluation": evaluated}
    found = {
        f"{name} of the true rows{mode}": getattr(outputs, name)[:true].astype(jnp.result_type(float))
        for mode, outputs in modes.items()
        for name in ("features", "logits")
    }
    return found | {"running statistics": jax.tree.map(jnp.subtract, stats, variables.batch_stats)}


def _forward_and_backward(model, variables, examples, key):
    """Returns the results of ``_forward``, and the gradient of a function of the true rows' outputs."""

    def project(params):
        found = _forward(model, variables._replace(params=params), examples, key)
        own = [found[f"{name} of the true rows"] for name in ("features", "logits")]
        directions = [np.random.default_rng(0).standard_normal(leaf.shape) for leaf in own]
        return sum(jnp.sum(leaf * direction) for leaf, direction in zip(own, directions, strict=True)), found

    gradient, found = jax.grad(project, has_aux=True)(variables.params)
    return found | {"gradients": gradient}


def _difference(found, expected, tolerance):
    """Returns the first effect that differs, and its relative difference; empty if there is none."""
    for name in sorted(expected, key="gradients".__eq__):  # last, as they say least about the cause
        first, second = (
            np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)] or [np.zeros(0)])
            for tree in (found[name], expected[name])
        )
        norm, apart = (float(np.linalg.norm(values)) for values in (second, first - second))
        if apart > tolerance * norm:
            return f"{name} by {apart / norm:.0%}" if norm else name
    return ""
