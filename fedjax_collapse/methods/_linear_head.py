"""The classifier of a network as a kernel [d, classes] and a bias [classes], for methods that compute it."""

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.nn.model import Model


def check_linear_head(method: str, model: Model) -> None:
    """Raises UserError for a head that is not a layer with a kernel [d, classes] and a bias."""
    shapes, params = model.initial_shapes(), model.variable_shapes().params
    (_, classes), (_, dim) = shapes.logits.shape, shapes.features.shape
    leaves = masks.select(model.mask("head").params, params)
    head = {path.rpartition("/")[2]: leaf.shape for path, leaf in leaves.items()}
    if head != {"kernel": (dim, classes), "bias": (classes,)}:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in head.items())
        raise UserError(f"{method}: the head has {found}; expected a kernel [{dim}, {classes}] and a bias [{classes}]")


def head_of(variables: Variables, model: Model) -> tuple[jax.Array, jax.Array]:
    """Returns kernel and bias."""
    leaves = masks.by_path(variables.params)
    kernel, bias = (leaves[path] for path in _paths(model))
    return kernel, bias


def with_head(variables: Variables, model: Model, kernel: jax.Array, bias: jax.Array) -> Variables:
    """Returns the variables with a new kernel and bias, in the dtypes of the old ones."""
    paths, leaves = _paths(model), masks.by_path(variables.params)
    new = {path: leaf.astype(leaves[path].dtype) for path, leaf in zip(paths, (kernel, bias), strict=True)}
    return variables._replace(params=masks.replace(variables.params, new))


def _paths(model):
    """The paths of the head's kernel and bias, in this order."""
    return sorted(masks.select(model.mask("head").params, model.mask("all").params), reverse=True)
