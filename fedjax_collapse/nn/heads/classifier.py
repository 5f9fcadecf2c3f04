"""How a network gets its classifier, and other initial weights of it."""

import flax.linen as nn
import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import WithOptions
from fedjax_collapse.core.records import Key, UserError, Variables
from fedjax_collapse.nn.heads.linear import Linear
from fedjax_collapse.nn.model import Model


def classify(head: str | type[nn.Module] | WithOptions, features: jax.Array, num_classes: int) -> jax.Array:
    """Logits [batch, classes] of the head, for use inside a compact method of a network.

    Raises:
        UserError: a text other than ``linear``: the library finds no heads by name.
    """
    make = Linear if head == "linear" else head
    if not callable(make):
        raise UserError(f"head {head!r}: expected linear, or what makes a module, such as nn.heads.ETF")
    return make(num_classes, name="head")(features)


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
