"""Products with trained and frozen matrices: values, gradients, and where the transposes of frozen ones are made."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close
from tiny_networks import derivatives

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings.products import multiply, of_columns

RNG = np.random.default_rng(0)
IN, OUT = 7, 5
INPUTS = {"rows": RNG.normal(size=(3, 6, IN)), "tokens": RNG.normal(size=(3, 2, 4, IN))}  # of three clients
KERNELS = RNG.normal(size=(3, IN, OUT))


@pytest.mark.parametrize("platform", ["cpu", "gpu", None])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_matmul(float64, platform, shared):
    """At first and second order, with a kernel of all clients and one of each, of which one or both are trained."""
    target = None if platform is None else Target(platform)

    @functools.partial(jax.vmap, in_axes=(0, None if shared else 0))
    def outcomes(inputs, kernel):
        products = (lambda x, w: multiply(x, w, target)), jnp.matmul
        cases = itertools.product(inputs.values(), [(0,), (1,), (0, 1)])
        return [[derivatives(product, trained, of, kernel) for product in products] for of, trained in cases]

    for ours, expected in jax.jit(outcomes)(INPUTS, KERNELS[0] if shared else KERNELS):
        assert_close(ours, expected, 1e-12)


def loops_with(shape, kernel_is_trained, target):
    """How many loops of a compiled program carry an array of that shape; it has two, of epochs and of steps."""
    size, rate = shape[::-1], 0.01

    def step(carry, frozen):
        inputs, kernel = carry

        def loss(inputs, kernel):
            return jnp.sum(jnp.tanh(multiply(inputs, kernel if kernel_is_trained else frozen, target)))

        return jax.tree.map(lambda x, g: x - rate * g, carry, jax.grad(loss, (0, 1))(inputs, kernel))

    def train(inputs, kernel):
        def epoch(_, carry):
            return jax.lax.fori_loop(0, 3, lambda _, carry: step(carry, kernel), carry)

        return jax.lax.fori_loop(0, 2, epoch, (inputs, kernel))

    program = jax.jit(train).lower(jnp.ones((6, size[0])), jnp.ones(size)).compile().as_text()
    loops = re.findall(r"= \((.*)\) while\(", program)
    assert len(loops) == 2
    return sum(f"f32[{shape[0]},{shape[1]}]" in loop for loop in loops)


def test_the_transpose_of_a_frozen_kernel_is_made_once():
    """On CPUs, before both loops; not that of a trained one, and not on other devices."""
    assert loops_with((40, 24), False, Target()) == 2
    assert loops_with((40, 24), True, Target()) == 0
    assert loops_with((40, 24), False, Target("gpu")) == 0


def test_gradients_with_fewer_columns_than_rows_are_computed_as_their_transpose():
    """On CPUs, if there are at least as many rows to add as columns."""

    def product(rows, inputs, outputs, platform):
        arguments = jnp.ones((rows, inputs)), jnp.ones((rows, outputs))
        program = jax.jit(functools.partial(of_columns, target=Target(platform))).lower(*arguments).compile()
        return re.search(r"= f32\[([\d,]+)\]\S* dot\(", program.as_text())[1]

    assert product(64, 24, 8, "cpu") == "8,24"
    assert [product(64, 24, 8, "gpu"), product(6, 24, 8, "cpu")] == ["24,8", "24,8"]
    assert product(64, 8, 24, "cpu") == "8,24"
