"""Learning-rate schedules over rounds: what multiplies the learning rate in round t = 0, 1, ...

Any schedule of optax is another one, such as ``jax.tree_util.Partial(optax.linear_schedule(1.0, 0.1, 50))``.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.options import Count, Positive
from fedjax_collapse.core.records import Scalar


def cosine(round: Scalar, rounds: Count) -> jax.Array:
    """From 1 down to 0 in so many rounds: ``(1 + cos(pi t / rounds)) / 2``, as in the released code of FedUV."""
    return (1 + jnp.cos(jnp.pi * round / rounds)) / 2


def decay(round: Scalar, factor: Positive = 0.998) -> jax.Array:
    """``factor^t``, as FedDC and FedRCL use it."""
    return factor**round
