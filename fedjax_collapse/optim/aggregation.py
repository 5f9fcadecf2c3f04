"""Pure tree reductions over the client axis, and the server's optimizers.

A client's upload has two parts: ``mean`` is averaged with the aggregation weights, ``total`` is summed over the cohort.
Both are sums of per-client terms, so a cohort can be reduced chunk by chunk, or device by device, without holding all
uploads at once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.schema.options import Decay, Positive


class Upload(NamedTuple):
    """The upload of one client or, after the reduction, the sums that the server receives."""

    mean: PyTree  # the model; the update instead of params if methods change uploads; None if never sent
    total: PyTree = ()  # the methods' reports


def weigh(upload: Upload, weight: jax.Array, is_real: jax.Array) -> Upload:
    """Returns one client's terms of the two sums; exact zeros if the client is padding."""
    mean = jax.tree.map(lambda leaf: jnp.where(is_real, weight * leaf, 0).astype(leaf.dtype), upload.mean)
    total = jax.tree.map(lambda leaf: jnp.where(is_real, leaf, jnp.zeros_like(leaf)), upload.total)
    return Upload(mean, total)


def sum_clients(stacked: PyTree) -> PyTree:
    """Returns the sum of every leaf over its leading client axis."""
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=leaf.dtype), stacked)


def per_client(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns values [cohort] with axes of length 1, so that they broadcast to a stacked leaf."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


def weighted_sum(stacked: PyTree, weights: jax.Array) -> PyTree:
    """Returns the sum of every leaf over its leading client axis, each client times its weight [cohort]."""
    terms = jax.tree.map(lambda leaf: (per_client(weights, leaf) * leaf).astype(leaf.dtype), stacked)
    return sum_clients(terms)


def damped_momentum(decay: Decay) -> optax.GradientTransformation:
    """FedAvgM as in the released code of FedDecorr and MOON: ``v <- decay v + (1 - decay) delta; w <- w + v``.

    The form of Hsu et al. (2019) has no factor ``(1 - decay)``; it is ``optax.sgd(1.0, momentum=decay)``.

    Args:
        decay: decay of the server's momentum v.
    """
    return optax.chain(optax.ema(decay, debias=False), optax.scale(-1.0))


def damped_adagrad(
    learning_rate: Positive, momentum: Decay = 0.9, tau: Positive = 1e-3
) -> optax.GradientTransformation:
    """FedAdagrad (Reddi et al., 2021): ``v <- momentum v + (1 - momentum) delta; s <- s + delta^2``, then
    ``w <- w + learning_rate v / (tau + sqrt(s))``.

    All three adaptive server optimizers differ from optax's optimizers of the same name, which have no first moment or
    correct its bias, and start ``s`` above zero.

    Args:
        learning_rate: the server's learning rate.
        momentum: decay of the first moment v; 0 is none.
        tau: added to the root of s, in the units of the update.
    """
    return _adaptive(learning_rate, momentum, tau, lambda second, square: second + square)


def damped_adam(
    learning_rate: Positive, momentum: Decay = 0.9, decay: Decay = 0.99, tau: Positive = 1e-3
) -> optax.GradientTransformation:
    """FedAdam: ``damped_adagrad`` with ``s <- decay s + (1 - decay) delta^2``.

    Args:
        learning_rate: the server's learning rate.
        momentum: decay of the first moment v; 0 is none.
        decay: decay of the second moment s.
        tau: added to the root of s, in the units of the update.
    """
    return _adaptive(learning_rate, momentum, tau, lambda second, square: decay * second + (1 - decay) * square)


def damped_yogi(
    learning_rate: Positive, momentum: Decay = 0.9, decay: Decay = 0.99, tau: Positive = 1e-3
) -> optax.GradientTransformation:
    """FedYogi: ``damped_adagrad`` with ``s <- s - (1 - decay) delta^2 sign(s - delta^2)``.

    Args:
        learning_rate: the server's learning rate.
        momentum: decay of the first moment v; 0 is none.
        decay: decay of the second moment s.
        tau: added to the root of s, in the units of the update.
    """
    return _adaptive(
        learning_rate, momentum, tau, lambda second, square: second - (1 - decay) * square * jnp.sign(second - square)
    )


def _adaptive(learning_rate, momentum, tau, accumulate):
    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return zeros, zeros

    def update(gradient, state, params=None):
        first = jax.tree.map(lambda v, g: momentum * v + (1 - momentum) * g, state[0], gradient)
        second = jax.tree.map(lambda s, g: accumulate(s, g**2), state[1], gradient)
        updates = jax.tree.map(lambda v, s: -learning_rate * v / (tau + jnp.sqrt(s)), first, second)
        return updates, (first, second)

    return optax.GradientTransformation(init, update)
