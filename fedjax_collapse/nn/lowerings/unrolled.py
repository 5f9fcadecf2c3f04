"""Functions that are applied to one client after another where everything else is batched over clients."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def one_by_one(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns the function, which ``jax.vmap`` applies to each element in turn, unrolled; so are its gradients."""

    @jax.custom_batching.custom_vmap
    def unrolled(*arguments):
        return function(*arguments)

    @unrolled.def_vmap
    def of_each(axis_size, in_batched, *arguments):
        def element(index):
            return jax.tree.map(lambda a, b: a[index] if b else a, list(arguments), list(in_batched))

        results = [unrolled(*element(index)) for index in range(axis_size)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results), jax.tree.map(lambda _: True, results[0])

    def backward(arguments, gradient):
        pull = one_by_one(lambda gradient, *arguments: jax.vjp(function, *arguments)[1](gradient))
        return pull(gradient, *arguments)

    differentiable = jax.custom_vjp(unrolled)
    differentiable.defvjp(lambda *arguments: (differentiable(*arguments), arguments), backward)
    return differentiable
