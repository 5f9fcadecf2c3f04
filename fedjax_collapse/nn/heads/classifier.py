"""The classifier of a network, and orthogonal initial weights for it."""

import inspect

import flax.linen as nn
import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Key, UserError, Variables
from fedjax_collapse.nn.heads.linear import Linear
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import WithOptions


def classify(
    head: str | type[nn.Module] | WithOptions, features: jax.Array, num_classes: int, mask: jax.Array, train: bool
) -> jax.Array:
    """Returns logits [batch, classes] of the head, for use inside a compact method of a network.

    Raises:
        UserError: if the head is a string other than ``linear``; other heads are passed as classes.
    """
    make = Linear if head == "linear" else head
    if not callable(make):
        raise UserError(f"head {head!r}: expected linear, or a class of heads such as nn.heads.ETF")
    made = make(num_classes, name="head")
    given = dict(mask=mask, train=train) if "mask" in inspect.signature(made.__call__).parameters else {}
    return made(features, **given)


def orthogonal_head(model: Model, variables: Variables, key: Key) -> Variables:
    """Returns the variables with an orthogonal classifier weight, for FedUV's "Freeze".

    Its columns are orthonormal (its rows, if there are more classes than features). In FedUV's released code the weight
    is only random and so nearly orthogonal. The bias does not change.

    Raises:
        UserError: if the network has no head with a kernel.
    """
    head = masks.select(model.mask("head").params, variables.params)
    kernels = {path: leaf for path, leaf in head.items() if path.endswith("kernel")}
    if len(kernels) != 1:
        raise UserError(f"head orthogonal: expected a head with one kernel, it has {', '.join(head)}")
    initializer = jax.nn.initializers.orthogonal()
    kernels = {path: initializer(key, leaf.shape, leaf.dtype) for path, leaf in kernels.items()}
    return variables._replace(params=masks.replace(variables.params, kernels))
