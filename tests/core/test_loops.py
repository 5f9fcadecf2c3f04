"""Loops of clients side by side: what each of them computes alone, batched once."""

import jax
import jax.numpy as jnp
import numpy as np
from conftest import assert_same_bits

from fedjax_collapse.core.loops import differing_with, repeat


def test_a_loop_in_a_loop_is_batched_once():
    """JAX traces the inner body five times if the values that differ among clients are found one after the other."""
    batched = []

    @jax.custom_batching.custom_vmap
    def add(total, number):
        return total + number

    @add.def_vmap
    def add_for_all(axis_size, in_batched, total, number):
        batched.append(in_batched)
        return total + number, True

    def of_client(count):
        def epoch(index, total):
            return repeat(count - index, lambda step, total: add(total, 10 * index + step), total)

        return repeat(count, epoch, jnp.zeros((), int))

    counts = np.array([0, 2, 3, 1])
    expected = [sum(10 * index + step for index in range(n) for step in range(n - index)) for n in counts]
    assert jax.vmap(of_client)(counts).tolist() == expected
    assert batched == [[True, True]]
    assert [int(of_client(jnp.array(n))) for n in counts] == expected


def test_values_stay():
    tree = {"a": jnp.array([np.nan, -0.0, np.inf]), "b": (jnp.array(True), jax.random.key(3), ())}
    assert_same_bits(jax.tree.map(_bits, differing_with(jnp.array(2), tree)), jax.tree.map(_bits, tree))


def _bits(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else np.asarray(leaf).view(np.uint8)
