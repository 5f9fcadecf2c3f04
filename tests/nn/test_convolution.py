"""Every lowering against XLA's convolution, and products with trained and frozen matrices, in value and gradient."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, cases, check
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_networks import derivatives

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.lowerings import chunks, winograd
from fedjax_collapse.nn.lowerings.convolution import Convolution, candidates, choose_lowering, convolve
from fedjax_collapse.nn.lowerings.products import multiply, of_columns, of_rows

SMALL = st.tuples(st.integers(1, 3), st.integers(1, 4))
COMMON = dict(
    size=st.integers(1, 5), stride=st.just(1), padding=st.integers(0, 3), channels=SMALL, groups=st.integers(1, 2),
    extent=st.tuples(st.integers(5, 9), st.integers(5, 9)), clients=st.sampled_from([None, 2]), platform=st.just("cpu"),
)  # fmt: skip
ANY = dict(stride=st.integers(1, 3), platform=st.sampled_from(["cpu", "gpu"]))
DRAWN = {  # what a lowering takes that differs from that
    "patches": dict(**ANY, groups=st.sampled_from([1, 1, 2, 3])),
    "product": dict(**ANY, size=st.just(1), padding=st.just(0), groups=st.just(1)),
    "shifted": dict(stride=ANY["stride"], channels=st.tuples(st.just(1), st.integers(1, 2)), groups=st.integers(1, 4)),
    "strips": dict(channels=st.tuples(st.integers(1, 3), st.sampled_from([1, 16, 20, 70]))),
    **{f"winograd{tile}, {size}": dict(size=st.just(size)) for tile in (2, 4) for size in (3, 5)},
}


def compare_with_xla(
    lowering, size, stride, padding, extent, channels, clients, groups, platform="cpu", batch=2, most=1e-5
):
    """Outputs and gradients, of one client or with a leading axis of clients with a kernel each."""
    rng = np.random.default_rng(0)
    lead = () if clients is None else (clients,)
    images = jnp.asarray(rng.normal(size=(*lead, batch, *extent, channels[0] * groups)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*lead, size, size, channels[0], channels[1] * groups)), jnp.float32)
    how = Convolution(stride, padding, groups, target=Target(platform))

    def derived(images, kernel, name):
        outputs, pull = jax.vjp(functools.partial(convolve, how=how._replace(lowering=name)), images, kernel)
        return outputs, pull(jnp.cos(jnp.arange(outputs.size, dtype=jnp.float32)).reshape(outputs.shape))

    def both(*arguments):
        return [derived(*arguments, name) for name in (lowering, "xla")]

    assert_close(*jax.jit(both if clients is None else jax.vmap(both))(images, kernel), most)


@pytest.mark.parametrize("name", DRAWN)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_a_lowering_equals_xla(name, data):
    drawn = data.draw(st.fixed_dictionaries(COMMON | DRAWN[name]))
    if name == "strips":
        drawn["padding"] = min(drawn["padding"], drawn["size"] - 1)
    most = 2e-5 if name.startswith("winograd4") else 1e-5  # its points are rounded most
    compare_with_xla(name.partition(",")[0], most=most, **drawn)


@cases((2, 3, 2e-7), (4, 3, 4.5e-7), (2, 5, 5e-7), (4, 5, 2e-6))
def test_winograd_in_32_bits(tile, size, most):
    """Errors of the outputs over their root mean square; with the points 1, -1, 2 and -2 F(4x4, 3x3) has 6e-7."""
    rng = np.random.default_rng(0)
    images, kernel = rng.random((4, 16, 16, 32), np.float32), rng.standard_normal((size, size, 32, 16), np.float32)
    outputs = jax.jit(convolve, static_argnums=2)(images, kernel, Convolution(padding=1, lowering=f"winograd{tile}"))
    with jax.enable_x64(True):
        exact = np.asarray(convolve(np.float64(images), np.float64(kernel), Convolution(padding=1, lowering="patches")))
    assert np.sqrt(np.mean((outputs - exact) ** 2) / np.mean(exact**2)) < most


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_second_order_of_products(float64, axes):
    """Gradients of gradients over clients, of kernels and images of their own or in common."""
    rng = np.random.default_rng(0)
    images, kernels = rng.normal(size=(3, 2, 6, 5, 2)), rng.normal(size=(3, 1, 1, 2, 4))
    arguments = [a if axis == 0 else a[0] for a, axis in zip((images, kernels), axes, strict=True)]

    def derived(lowering):
        how = Convolution(2, lowering=lowering, target=Target("gpu"))

        one = functools.partial(derivatives, functools.partial(convolve, how=how), (0, 1))
        return jax.jit(jax.vmap(one, axes))(*arguments)

    assert_close(derived("product"), derived("xla"), 1e-12)


def test_the_first_lowering_that_applies():
    how = Convolution(1, 1, lowering="product+shifted+winograd2+patches")
    assert choose_lowering((8, 8, 8, 16), (1, 1, 16, 64), how._replace(padding=0)) == "product"
    assert choose_lowering((8, 8, 8, 16), (3, 3, 1, 16), how._replace(groups=16)) == "shifted"
    assert choose_lowering((8, 8, 8, 16), (3, 3, 16, 64), how) == "winograd2"
    assert choose_lowering((8, 8, 8, 16), (3, 3, 16, 64), how._replace(stride=2)) == "patches"
    for lowering in ("fused_norm", "fused_norm+auto", "product+auto"):
        assert choose_lowering((16, 8, 8, 32), (3, 3, 32, 128), Convolution(1, 1, lowering=lowering)) == "winograd4"


@cases("patches", "product")
def test_strided_products_on_a_gpu_are_of_sliced_images_behind_a_barrier(lowering):
    """XLA of JAX 0.10.2 aborts while it compiles a ResNet-18 for an H100 otherwise."""
    images, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((1, 1, 4, 8))
    for stride, platform in ((2, "gpu"), (1, "gpu"), (2, "cpu")):
        how = Convolution(stride, lowering=lowering, target=Target(platform))
        program = jax.make_jaxpr(jax.grad(lambda k, how=how: jnp.sum(convolve(images, k, how))))(kernel)
        assert ("optimization_barrier" in str(program)) == ((stride, platform) == (2, "gpu"))


@cases("patches", "shifted", "strips", "winograd2", "winograd4")
def test_chunks_of_the_batch(lowering, monkeypatch):
    """One example at a time where the cache is full at once."""
    monkeypatch.setattr(chunks, "CACHE_BYTES", 1)
    monkeypatch.setattr(winograd, "_LEAST_ROWS", 1)
    monkeypatch.setattr(winograd, "_MOST_BYTES", 0)
    groups, channels = (4, (1, 1)) if lowering == "shifted" else (1, (2, 3))
    compare_with_xla(lowering, 3, 1, 1, (5, 6), channels, 2, groups, batch=3)


def test_products_of_16_bits_are_added_in_32():
    """The gradient of a depthwise kernel is that of the same numbers in 32 bits, rounded once."""
    rng = np.random.default_rng(0)
    images, kernel = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((4, 16, 16, 8), (3, 3, 1, 8)))
    how = Convolution(1, 1, groups=8, lowering="shifted")

    @jax.jit
    def gradient(images, kernel):
        return jax.vjp(lambda k: convolve(images, k, how), kernel)[1](images)[0]

    exact = gradient(images.astype(jnp.float32), kernel.astype(jnp.float32))
    rounded = gradient(images, kernel)
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(jnp.float32), exact, rtol=2**-8)


@cases(
    ((16, 8, 8, 32), (3, 3, 32, 128), {}, "winograd4"),
    ((32, 4, 4, 32), (3, 3, 32, 128), {}, "winograd2"),
    ((10, 2, 2, 32), (3, 3, 32, 128), {}, "patches"),
    ((16, 8, 8, 32), (5, 5, 32, 64), dict(padding=2), "winograd4"),
    ((16, 8, 8, 32), (7, 7, 32, 64), {}, "patches"),
    ((16, 8, 8, 32), (3, 3, 32, 64), dict(stride=2), "patches"),
    ((16, 8, 8, 32), (3, 3, 16, 64), dict(groups=2), "winograd4"),
    ((16, 8, 8, 32), (3, 3, 1, 64), dict(stride=2, groups=32), "shifted"),
    ((8, 8, 8, 3), (3, 3, 3, 64), {}, "strips"),
    ((8, 8, 8, 3), (3, 3, 3, 64), dict(stride=2), "patches"),
    ((8, 8, 8, 1), (1, 1, 1, 64), dict(padding=0), "patches"),
)
def test_auto_on_a_cpu_never_is_xla(images, kernel, options, expected):
    """Winograd for 3x3 convolutions in 32 bits, in smaller tiles of fewer pixels, and not of the fewest; strips for
    colours, shifted for one channel a group, else patches."""
    how = Convolution(**dict(padding=1) | options)
    assert choose_lowering(images, kernel, how) == expected
    assert choose_lowering(images, kernel, how, dtype="bfloat16") in ("patches", "shifted", "strips")
    program = jax.make_jaxpr(jax.vmap(lambda i, k: convolve(i, k, how)))
    assert "conv_general" not in str(program(jnp.ones((2, *images)), jnp.ones((2, *kernel))))


def test_5x5_kernels_amplify_the_rounding_of_16_bit_products():
    layers = [Convolution(1, 1).layer((8, 8, 8, 64), (size, size, 64, 64), "float32") for size in (3, 5)]
    of_3x3, of_5x5 = (candidates(layer, Target("gpu")) for layer in layers)
    assert of_3x3 == ["patches", "winograd2", "winograd4", "xla"]
    assert of_5x5 == ["patches", "xla"]
    assert candidates(layers[1], Target()) == ["patches", "winograd2", "winograd4"]


def test_auto_on_accelerators():
    """On a TPU always XLA; on a GPU where nothing like it was timed: more channels, groups, other kernels, 16 bits."""
    shape, timed = (8, 8, 8, 64), ((3, 3, 64, 128), 1)
    others = ((3, 3, 1, 64), 64), ((5, 5, 64, 6), 1), ((1, 1, 64, 64), 1)
    for kernel, groups in (timed, *others):
        on_gpu, on_tpu = (Convolution(1, 1, groups, target=Target(platform)) for platform in ("gpu", "tpu"))
        assert choose_lowering(shape, kernel, on_tpu) == "xla"
        assert (choose_lowering(shape, kernel, on_gpu) == "xla") == (kernel != timed[0])
    how = Convolution(1, 1, target=Target("gpu"))
    assert choose_lowering(shape, timed[0], how) == "patches"
    assert choose_lowering((8, 8, 8, 16), (3, 3, 16, 32), how) == "strips"
    assert choose_lowering((8, 8, 8, 16), (3, 3, 16, 32), how._replace(stride=2)) == "patches"
    assert choose_lowering((8, 8, 8, 65), (3, 3, 65, 32), how) == "xla"
    assert choose_lowering(shape, timed[0], how, "bfloat16") == "xla"


@cases(
    ((3, 3, 4, 4), dict(lowering="fft"), "lowering 'fft': expected one of auto, patches, product, shifted"),
    ((3, 3, 4, 4), dict(lowering="strips", stride=2), "needs stride 1 and padding < kernel size 3, not 2, 1"),
    ((3, 3, 4, 4), dict(lowering="winograd4", stride=2), "'winograd4' needs kernel size 3 or 5 and stride 1, not"),
    ((3, 3, 4, 4), dict(lowering="shifted"), "needs as many groups as input channels, not 1 groups of 4 channels"),
    ((3, 3, 4, 4), dict(lowering="product+shifted"), "'product' needs kernel size 1, padding 0 and 1 group, not 3"),
    ((3, 3, 4, 4), dict(lowering="xla+fast"), "lowering 'fast': expected .* xla, fused_norm, or several with"),
    ((3, 3, 1, 4), dict(groups=3), "convolution of 4 channels to 4 in 3 groups: both must be divisible"),
    ((3, 3, 2, 5), dict(groups=2), "convolution of 4 channels to 5 in 2 groups: both must be divisible"),
    ((9, 9, 4, 4), {}, "images of 6x7 pixels are too small for a 9x9 convolution with padding 1: it needs at leas"),
)
def test_bad_input(kernel, options, message):
    how = Convolution(**dict(stride=1, padding=1) | options)
    check(message, convolve, jnp.ones((1, 6, 7, 4)), jnp.ones(kernel), how)


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


def product_of(function, platform, *shapes):
    """The shape of the product in a function's compiled program, and its value on random arrays of these shapes."""
    arrays = [jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in shapes]
    program = jax.jit(functools.partial(function, target=Target(platform))).lower(*arrays).compile()
    return re.search(r"= f32\[([\d,]+)\]\S* dot\(", program.as_text())[1], program(*arrays), *arrays


def test_gradients_with_fewer_columns_than_rows_are_computed_as_their_transpose():
    """On CPUs, if there are at least as many rows to add as columns."""

    def product(rows, inputs, outputs, platform):
        return product_of(of_columns, platform, (rows, inputs), (rows, outputs))[0]

    assert product(64, 24, 8, "cpu") == "8,24"
    assert [product(64, 24, 8, "gpu"), product(6, 24, 8, "cpu")] == ["24,8", "24,8"]
    assert product(64, 8, 24, "cpu") == "8,24"


def test_gradients_of_few_rows_and_a_large_matrix_are_computed_as_their_transpose():
    """On CPUs."""

    def product(rows, inputs, platform):
        shape, value, gradient, kernel = product_of(of_rows, platform, (rows, 128), (inputs, 128))
        assert_close(value, gradient @ kernel.T, 1e-5)
        return shape

    assert [product(4, size, "cpu") for size in (128, 127)] == ["128,4", "4,127"]
    assert [product(rows, 130, "cpu") for rows in (128, 129)] == ["130,128", "129,130"]
    assert product(4, 128, "gpu") == "4,128"
