"""Min-max: malicious clients move from the honest mean as far as honest updates are from one another.

    sent = mean(H) - gamma std(H),   the largest gamma with  max_i ||sent - h_i|| <= max_ij ||h_i - h_j||

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning" (NDSS 2021), in the direction of the standard deviation (divisor: the number of honest updates minus 1).
gamma, which they search by bisection, is here the least root of the quadratic equations of all h_i.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses.norms import root
from fedjax_collapse.methods.robust._attacks import Honest, OmniscientAttack
from fedjax_collapse.methods.robust._robust import squared_distances


class MinMax(OmniscientAttack):
    """The mean minus gamma deviations."""

    def forge(self, honest: Honest) -> PyTree:
        deviation = honest.deviation
        gamma = largest_step(honest, deviation)
        return jax.tree.map(lambda mean, std: (mean - gamma * std).astype(mean.dtype), honest.mean, deviation)


def largest_step(honest: Honest, deviation: PyTree) -> jax.Array:
    """Returns gamma; 0 if all honest uploads are equal, or there is one."""
    distances = squared_distances(honest.stacked, honest.mask)
    diameter = jnp.max(jnp.where(jnp.isfinite(distances), distances, 0))
    gaps = jax.tree.map(lambda leaf, mean: mean[None] - leaf, honest.stacked, honest.mean)
    rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(gaps)]
    along = [leaf.ravel() for leaf in jax.tree.leaves(deviation)]
    square = sum(jnp.sum(d**2) for d in along)  # |mean - gamma std - h|^2 = gap - 2 gamma product + gamma^2 square
    products = sum(jnp.sum(row * d[None], axis=1) for row, d in zip(rows, along, strict=True))
    squares = sum(jnp.sum(row**2, axis=1) for row in rows)
    steps = products + root(products**2 + square * (diameter - squares))
    least = jnp.min(jnp.where(honest.mask, steps, jnp.inf))
    is_spread = (square > 0) & jnp.isfinite(least)
    return jnp.where(is_spread, least / jnp.where(is_spread, square, 1), 0)
