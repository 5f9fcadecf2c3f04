"""``DPFedAvg``: the clip, the noise and its key, and the clip that follows a quantile."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse import DPFedAvg, NoiseView, Variables
from fedjax_collapse.methods.server.dp_fedavg import of_sum

ZEROS = {"a": jnp.zeros((150, 200)), "b": jnp.zeros(20_000)}


def perturb(method, update=ZEROS, clip=None, report=0.0, expected=50.0, key=0):
    shared = () if method.quantile is None else jnp.asarray(method.clip if clip is None else clip)
    key = jax.random.key(key) if isinstance(key, int) else key
    view = NoiseView(shared, jnp.asarray(report), jnp.asarray(expected), jnp.array(0), key)
    return method.perturb(update, view)


class View:
    """What ``upload`` reads."""

    def __init__(self, shared=(), memory=()):
        self.shared, self.memory = shared, memory


def test_the_whole_upload_is_clipped():
    """Over all its arrays together; one that is not finite is 0."""
    update = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    sent, _ = DPFedAvg(clip=1.0).upload(update, View())
    assert (float(sent["a"][0]), float(sent["b"][0])) == pytest.approx((0.6, 0.8))
    sent, _ = DPFedAvg(clip=6.0).upload(update, View())
    assert sent == update
    for wrong in (jnp.nan, jnp.inf):
        sent, _ = DPFedAvg(clip=6.0).upload({**update, "a": jnp.array([wrong])}, View())
        assert not np.any(jax.tree.leaves(sent))


@pytest.mark.parametrize("norm", [4.0, 5.0, 6.0])
def test_the_bit_is_of_clients_within_the_clip(norm):
    method = DPFedAvg(clip=1.0, quantile=0.5)
    _, memory = method.upload({"a": jnp.array([norm])}, View(jnp.array(5.0), jnp.zeros(())))
    assert method.finish(View(memory=memory))[1] == (0.5 if norm <= 5 else -0.5)


@pytest.mark.parametrize("size", [None, 1000])
def test_noise_of_the_sum(size):
    """Its deviation is z C, or z C m / M for a cohort of m that stands for M; uncorrelated between arrays."""
    method = DPFedAvg(0.5, 0.8, noise_cohort_size=size)
    update, _ = perturb(method)
    deviation = 0.8 * 0.5 * (1 if size is None else 50 / size)
    for leaf in update.values():
        of_sum_ = 50 * np.asarray(leaf).ravel()
        assert of_sum_.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * of_sum_.size))
        assert abs(of_sum_.mean()) < 5 * deviation / np.sqrt(of_sum_.size)
    first, second = (np.asarray(update[name]).ravel()[:20_000] for name in "ab")
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(20_000)
    again, other = perturb(method)[0], perturb(method, key=1)[0]
    assert (again["a"] == update["a"]).all() and not (other["a"] == update["a"]).any()
    shifted, _ = perturb(method, jax.tree.map(lambda leaf: leaf + 1, ZEROS))
    np.testing.assert_allclose(shifted["a"] - update["a"], 1, atol=1e-6)


@pytest.mark.parametrize(("within", "expected"), [(0, 0.1105171), (50, 0.0904837), (12.5, 0.1051271)])
def test_the_clip_follows_the_quantile(within, expected):
    """Down where more clients are within it than wanted; the noise is of the clip before."""
    method = DPFedAvg(0.3, 1e-12, quantile=0.5, bit_noise=1e-9)
    update, clip = perturb(method, clip=0.1, report=within - 25)  # the bits of 50 clients, less 1/2 each
    assert float(clip) == pytest.approx(expected, rel=1e-6)
    loud = DPFedAvg(0.3, 1.0, quantile=0.5)
    update, _ = perturb(loud, clip=0.1, report=within)
    assert 50 * np.asarray(update["b"]).std() == pytest.approx(1.020621 * 0.1, rel=0.03)


def test_correlated_noise():
    """It is C^-1 Z with a banded C whose columns have norm 1; what sends nothing keeps its zeros."""
    method, rounds, update = DPFedAvg(2.0, 0.5, bands=3), 6, {"a": jnp.zeros(4), "b": None}
    shared = method.init_shared(Variables({"a": jnp.zeros(4), "b": jnp.zeros(2)}, {}), None)
    independent, found = [], []
    for key in jax.random.split(jax.random.key(3), rounds):
        view = NoiseView(shared, (), jnp.asarray(50.0), jnp.array(0), key)
        noisy, shared = method.perturb(update, view)
        found.append(noisy["a"])
        independent.append(perturb(DPFedAvg(2.0, 0.5), {"a": jnp.zeros(4)}, key=key)[0]["a"])
    first = np.array([1, 1 / 2, 3 / 8]) / np.linalg.norm([1, 1 / 2, 3 / 8])
    banded = sum(np.diag(np.full(rounds - j, c), -j) for j, c in enumerate(first))
    np.testing.assert_allclose(found, np.linalg.solve(banded, np.array(independent)), rtol=1e-4, atol=1e-6)
    assert shared["b"].shape == (2, 2) and not shared["b"].any()
    assert np.linalg.norm(np.linalg.inv(banded).cumsum(axis=0)[-1]) < np.sqrt(rounds)  # less on the sum of all rounds
    with one_line("bands with quantile"):
        DPFedAvg(quantile=0.5, bands=2).check()


def test_the_share_of_the_bits():
    assert float(of_sum(1.0, 50 / 20)) == pytest.approx(1.020621, rel=1e-6) and of_sum(0.0, 2.5) == 0
    view = NoiseView(jnp.ones(()), jnp.array(25.0), jnp.array(50.0), jnp.array(0), jax.random.key(0))

    def clip(key):
        return DPFedAvg(quantile=0.5).perturb({}, dataclasses.replace(view, key=key))[1]

    bits = np.log(np.asarray(jax.vmap(clip)(jax.random.split(view.key, 400)))) / -0.2
    assert bits.std() == pytest.approx(1 / 20, rel=0.15)  # of the mean bit
    assert DPFedAvg(quantile=0.5).noise(50) == (1.0, 50, 1) and DPFedAvg(noise_cohort_size=90).noise(50) == (1.0, 90, 1)
    with one_line(r"noise_multiplier 1 with quantile: expected less than twice .* 0.5"):
        DPFedAvg(quantile=0.5).noise(10)
