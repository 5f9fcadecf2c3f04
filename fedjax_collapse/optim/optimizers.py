"""Checks of optimizers and learning-rate schedules with their options."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core._jax_compat import is_traced
from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.schema import user_code
from fedjax_collapse.schema.options import WithOptions, check_value, hints, shown

_KNOWN = ("optax", "fedjax_collapse")  # where every option is a parameter


def check_optimizer(what: str, made_by: jax.tree_util.Partial, **given: Any) -> None:
    """Traces a step of an optimizer; training passes the arguments ``given``.

    Raises:
        UserError: the optimizer cannot be constructed or take a step, training passes one of its options, or an option
            of an optimizer of optax or of the library has no effect, such as ``nesterov`` without ``momentum``.
    """
    function, options = _function_and_options(made_by)
    if passed := [name for name in given if name in options]:
        raise UserError(f"{what}: {passed[0]} {shown(options[passed[0]])} is given by training; leave it out")
    if any(is_traced(leaf) for leaf in jax.tree.leaves(made_by)):
        return
    args = [_number(value) for value in made_by.args]
    options = {name: _number(value) for name, value in options.items()}
    program = user_code.call(f"{what} cannot be made with these options", _program, function, args, options | given)
    if not (getattr(function, "__module__", None) or "").startswith(_KNOWN):
        return
    parameters = inspect.signature(function).parameters
    for name, value in options.items():
        default = parameters[name].default
        if not isinstance(value, (bool, int, float, str)) or default is inspect.Parameter.empty or value == default:
            continue
        if _program(function, args, options | given | {name: default}) == program and _is_unused(
            function, args, options | given, name
        ):
            raise UserError(f"{what}: {name} {shown(value)} has no effect with the other options; leave it out")


def check_matrices(what: str, made_by: jax.tree_util.Partial, params: PyTree) -> None:
    """Checks that Muon, which trains all but matrices with Adam, trains the kernels of a network.

    Raises:
        UserError: it would train a kernel with Adam, because no option says which of its axes form a matrix.
    """
    function, options = _function_and_options(made_by)
    if function is not optax.contrib.muon or options.get("muon_weight_dimension_numbers") is not None:
        return
    for path, leaf in masks.by_path(params).items():
        if leaf.ndim > 2:
            raise UserError(
                f"{what} muon: optax's orthogonalises matrices only, and would train {path}, of {leaf.ndim} axes, with "
                "Adam; expected fedjax_collapse.optim.muon.muon, or an optimizer with muon_weight_dimension_numbers"
            )


def check_schedule(what: str, schedule: jax.tree_util.Partial) -> None:
    """Traces a schedule.

    Raises:
        UserError: an option is invalid, or the schedule cannot be called with a round, or does not return a number.
    """
    annotations = hints(schedule.func)
    for name, value in schedule.keywords.items():
        check_value(f"{what}: {name}", value, annotations.get(name, Any))
    round = jax.ShapeDtypeStruct((), jnp.int32)
    shape = user_code.call(f"{what} cannot be called with a round", lambda: jnp.shape(jax.eval_shape(schedule, round)))
    if shape != ():
        raise UserError(f"{what} returns shape {shape}, expected a number")


def _function_and_options(made_by: jax.tree_util.Partial) -> tuple[Callable, Mapping[str, Any]]:
    """Returns the function and its named arguments, traced or not."""
    if isinstance(made_by.func, WithOptions):
        return made_by.func.function, {**made_by.keywords, **dict(made_by.func.options)}
    return made_by.func, made_by.keywords


def _program(function, args, options):
    """Returns the programs of the initialization and of a step as text, in which unused numbers do not occur."""
    made = function(*args, **options)

    def start_and_step(params):
        state = made.init(params)
        updates, state_after = made.update(params, state, params)
        return jax.tree.map(jnp.add, params, updates), state, state_after

    traced = jax.make_jaxpr(start_and_step)(
        {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32), "bias": jax.ShapeDtypeStruct((2,), jnp.float32)}
    )
    return re.sub("0x[0-9a-f]+", "", str(traced.jaxpr)), [np.asarray(constant).tolist() for constant in traced.consts]


def _is_unused(function, args, options, name):
    """Whether the option is never used: any value is accepted."""
    try:
        _program(function, args, options | {name: object()})
    except Exception:
        return False
    return True


def _number(value):
    """Returns an array of one number as a Python number, which becomes part of the program."""
    return value.item() if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 0 else value
