"""Classifiers on the features: the part of a network that is called ``head``.

A head of one's own is a Linen module that is made as ``Head(num_classes, name="head")`` and called with the features
[batch, d]; it returns logits [batch, classes].
"""

import flax.linen as nn
import jax

from fedjax_collapse import masks
from fedjax_collapse.model import Model
from fedjax_collapse.nn.layers import Dense, Init
from fedjax_collapse.records import Key, UserError, Variables

HEADS = ("linear",)


def classify(head: str | type[nn.Module], features: jax.Array, num_classes: int, kernel_init: Init) -> jax.Array:
    """Logits [batch, classes] of the head, for use inside a compact method.

    Raises:
        UserError: unknown head.
    """
    if not isinstance(head, str):
        return head(num_classes, name="head")(features)
    if head not in HEADS:
        raise UserError(f"head {head!r}: expected one of {', '.join(HEADS)}, or the class of a module")
    return Dense(num_classes, kernel_init=kernel_init, part="head")(features)


def orthogonal_head(model: Model, variables: Variables, key: Key) -> Variables:
    """The variables with a new classifier weight: orthonormal columns (rows, if there are more classes than features).

    For FedUV's "Freeze" with an orthogonal classifier, which in its released code is only random and so nearly
    orthogonal. The bias stays.

    Raises:
        UserError: the network has no head with a kernel.
    """
    head = masks.select(model.mask("head").params, variables.params)
    kernels = {path: leaf for path, leaf in head.items() if path.endswith("kernel")}
    if len(kernels) != 1:
        raise UserError(f"head orthogonal: expected a head with one kernel, it has {', '.join(head)}")
    initializer = jax.nn.initializers.orthogonal()
    kernels = {path: initializer(key, leaf.shape, leaf.dtype) for path, leaf in kernels.items()}
    return variables._replace(params=masks.replace(variables.params, kernels))
