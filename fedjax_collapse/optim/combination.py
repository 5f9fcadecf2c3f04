"""The convex combination of vectors with the smallest norm, by which FedPAC weighs heads and FedU2 updates."""

import jax
import jax.numpy as jnp


def smallest_combination(matrix: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns the weights ``a`` [size], not negative and with sum 1, with the smallest ``a' matrix a``.

    ``a`` is ``b / sum(b)``, where b >= 0 minimises ``b' matrix b / 2 - sum(b)``, whose gradient is then 0 where b > 0,
    and nowhere negative. Which entries are positive is found by principal pivoting (Kim and Park, SIAM J. Sci. Comput.
    2011): all that violate this change sides, and if that has not ended after ``size`` steps, one at a time.

    Args:
        matrix: [size, size] positive semidefinite.
        allowed: [size] which weights may be positive.
    """
    size, eps = len(allowed), jnp.finfo(matrix.dtype).eps
    matrix = jnp.where(allowed[:, None] & allowed, matrix, 0)
    trace = jnp.trace(matrix)
    identity = jnp.eye(size, dtype=matrix.dtype)
    matrix = matrix / jnp.where(trace > 0, trace, 1) + eps * identity

    def solve(positive):
        system = jnp.where(positive[:, None] & positive, matrix, identity)
        values = jnp.linalg.solve(system, positive.astype(matrix.dtype))
        slack = matrix @ values - 1
        is_wrong = jnp.where(positive, values < -100 * eps * jnp.max(jnp.abs(values)), slack < -100 * eps)
        return values, is_wrong & allowed

    def pivot(carry):
        step, positive, _, is_wrong = carry
        last = jnp.arange(size) == jnp.max(jnp.where(is_wrong, jnp.arange(size), -1))
        positive = positive ^ jnp.where(step < size, is_wrong, last)
        return step + 1, positive, *solve(positive)

    def continues(carry):
        step, _, _, is_wrong = carry
        return jnp.any(is_wrong) & (step < 10 * size + 20)

    _, _, values, _ = jax.lax.while_loop(continues, pivot, (0, allowed, *solve(allowed)))
    return scaled_to_one(jnp.maximum(values, 0))


def scaled_to_one(weights: jax.Array) -> jax.Array:
    """Returns the weights scaled to sum 1 in their last axis; zeros if all are."""
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)
