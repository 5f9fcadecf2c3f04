"""Loops of clients side by side: what each of them computes alone, batched once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same_bits, cases

from fedjax_collapse.core.loops import differing_with, repeat, repeat_for_all


@pytest.mark.parametrize("repeat_epochs", [repeat, repeat_for_all])
def test_a_loop_in_a_loop_is_batched_once(repeat_epochs):
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

        return repeat_epochs(count, epoch, jnp.zeros((), int))

    counts = np.array([0, 2, 3, 1])
    expected = [sum(10 * index + step for index in range(n) for step in range(n - index)) for n in counts]
    assert jax.vmap(of_client)(counts).tolist() == expected
    assert batched == [[True, True]]
    assert [int(of_client(jnp.array(n))) for n in counts] == expected
    runs = np.stack([counts, counts[::-1]])
    assert jax.vmap(jax.vmap(of_client))(runs).tolist() == [expected, expected[::-1]]


@cases((repeat, True), (repeat_for_all, False))
def test_no_carry_is_kept_for_clients_that_have_ended(repeat_epochs, chooses):
    """Also where runs are batched around their clients."""

    def of_client(count):
        return repeat_epochs(count, lambda index, total: total + index, jnp.zeros(3, int))

    for of_all, counts in ((jax.vmap(of_client), np.arange(4)), (jax.vmap(jax.vmap(of_client)), np.ones((2, 4), int))):
        (loop,) = [eqn for eqn in jax.make_jaxpr(of_all)(counts).eqns if eqn.primitive.name == "while"]
        (goes_on,) = loop.params["cond_jaxpr"].out_avals  # JAX chooses where it differs among clients
        assert goes_on.shape == (counts.shape if chooses else ())


def test_values_stay():
    tree = {"a": jnp.array([np.nan, -0.0, np.inf]), "b": (jnp.array(True), jax.random.key(3), ())}
    assert_same_bits(jax.tree.map(_bits, differing_with(jnp.array(2), tree)), jax.tree.map(_bits, tree))


def _bits(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else np.asarray(leaf).view(np.uint8)
