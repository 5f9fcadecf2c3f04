"""Learning-rate schedules over rounds: factors of the learning rate in round t = 0, 1, ...

Every optax schedule is valid, too: ``jax.tree_util.Partial(optax.linear_schedule(1.0, 0.1, 50))``.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar
from fedjax_collapse.schema.options import Count, Positive


def cosine(round: Scalar, rounds: Count) -> jax.Array:
    """Falls from 1 to 0: ``(1 + cos(pi t / rounds)) / 2``, as in the released code of FedUV.

    Args:
        round: 0 in the first round.
        rounds: the round in which the factor is 0.
    """
    return (1 + jnp.cos(jnp.pi * round / rounds)) / 2


def decay(round: Scalar, factor: Positive = 0.998) -> jax.Array:
    """Falls by the same factor in every round, ``factor^t``, as in FedDC and FedRCL.

    Args:
        round: 0 in the first round.
        factor: factor of the learning rate from round to round.
    """
    return factor**round
