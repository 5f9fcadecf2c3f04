"""The classifier of a network, mostly a kernel [d, classes] and a bias [classes], for methods that compute it."""

from collections.abc import Callable, Mapping

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.nn.model import Model


def check_linear_head(method: str, model: Model) -> None:
    """Raises UserError for a head that is not a layer with a kernel [d, classes] and a bias."""
    check_head(method, model, lambda classes, dim: {"kernel": (dim, classes), "bias": (classes,)})


def check_head(method: str, model: Model, expected: Callable[[int, int], dict[str, tuple[int, ...]]]) -> None:
    """Raises UserError for a head with other params than expected: shapes by name, given classes and d."""
    shapes, params = model.initial_shapes(), model.variable_shapes().params
    classes, dim = shapes.logits.shape[-1], shapes.features.shape[-1]
    leaves = masks.select(model.mask("head").params, params)
    head = {path.rpartition("/")[2]: leaf.shape for path, leaf in leaves.items()}
    needed = expected(classes, dim)
    if head != needed:
        found, wanted = ([f"{name} {list(shape)}" for name, shape in params.items()] for params in (head, needed))
        raise UserError(f"{method}: the head has {', '.join(found)}; expected a {' and a '.join(wanted)}")


def head_of(variables: Variables, model: Model) -> tuple[jax.Array, jax.Array]:
    """Returns kernel and bias."""
    bias, kernel = masks.select(model.mask("head").params, variables.params).values()
    return kernel, bias


def with_head(variables: Variables, model: Model, kernel: jax.Array, bias: jax.Array) -> Variables:
    """Returns the variables with a new kernel and bias, in the dtypes of the old ones."""
    return with_params(variables, model, {"kernel": kernel, "bias": bias})


def with_params(variables: Variables, model: Model, new: Mapping[str, jax.Array]) -> Variables:
    """Returns the variables with new params of the head, by name, in the dtypes of the old ones."""
    old = masks.select(model.mask("head").params, variables.params)
    leaves = {path: new[path.rpartition("/")[2]].astype(leaf.dtype) for path, leaf in old.items()}
    return variables._replace(params=masks.replace(variables.params, leaves))
