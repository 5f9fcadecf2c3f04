"""What stays at clients (FedPer, FedRep, LG-FedAvg), and what ``DPFedAvg`` sends: the clip, the noise and its key."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_same_bits, cases, check
from conftest import run_at_once as run

from experiments.configs import base
from fedjax_collapse import DPFedAvg, FedAvg, Model, NoiseView, Participation, Phase, Variables, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core import masks
from fedjax_collapse.methods.drift.fedsam import FedSAM
from fedjax_collapse.methods.personal.fedper import FedPer
from fedjax_collapse.methods.personal.fedrep import FedRep
from fedjax_collapse.methods.personal.lg_fedavg import LGFedAvg
from fedjax_collapse.methods.server.dp_fedavg import of_sum


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(7, 6)), federation.input_shape)


@pytest.mark.slow
@cases("initial", "mean")
def test_newcomers_have_initial_or_mean_heads(newcomers, federation, network):
    """Newcomers get the mean, by size, of heads whose uploads arrived, also with private biases; or the initial one."""
    start, rule = network.init(jax.random.key(3)), Participation(0.8, upload_loss=0.5)
    methods, options = {"it": FedPer(newcomers)}, dict(variables=start, participation=rule, key=jax.random.key(4))
    result = run(federation, network, FedAvg(TRAINING, methods, private="Dense_0/bias"), **options)
    arrived, took_part = result.clients["arrived"][0], result.clients["steps"][0] > 0
    assert took_part.sum() == 4 and 1 < (arrived == 1).sum() < 4
    weights = np.where(arrived == 1, federation.ownership.sizes, 0)
    for path, stored in result.state.clients.private.items():
        mean = np.average(stored, axis=0, weights=weights)
        newcomer = masks.by_path(start)[path] if newcomers == "initial" else mean
        for client in range(5):
            own = masks.by_path(result.personal(client))[path]
            np.testing.assert_allclose(own, stored[client] if took_part[client] else newcomer, rtol=1e-5, atol=1e-7)
    of_server = masks.by_path(result.variables)["params/Dense_2/bias"]
    own = np.stack([masks.by_path(result.personal(client))["params/Dense_2/bias"] for client in range(5)])
    np.testing.assert_allclose(of_server, own.mean(axis=0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_what_a_method_keeps_is_not_perturbed(federation, network):
    """FedSAM does not perturb FedPer's private heads, as with ``private="head"``."""
    sharp = {"fedsam": FedSAM(0.5)}
    named = run(federation, network, FedAvg(TRAINING, {"fedper": FedPer(), **sharp}), rounds=1)
    plain = run(federation, network, FedAvg(TRAINING, sharp, private="head"), rounds=1)
    assert_same_bits(named.variables, plain.variables)
    assert_same_bits(named.state.clients.private, plain.state.clients.private)


def test_parts_of_methods_are_joined(federation):
    model = Model(nn.SmallCNN(4, channels=(3,)), federation.input_shape)

    def names(part):
        return masks.select(model.mask(part), jax.eval_shape(model.init, jax.random.key(0))).keys()

    assert names(FedAvg(private="batch_norm", methods={"fedper": FedPer()}).private_part) == names("head+batch_norm")
    shared = FedAvg(private="Dense_0/bias", methods={"lg_fedavg": LGFedAvg("head + Conv_0")}).private_part
    assert names(shared) == names("batch_norm+Dense_0/bias")
    model = Model(nn.MOONCNN(10, hidden=(120, 100)), (32, 32, 3))  # LG-FedAvg's command for CIFAR-10
    assert names(LGFedAvg("Conv_0+Conv_1").private) == names("Dense_0+Dense_1+head")


@cases(
    (FedAvg(TRAINING.replace(phases=(Phase(),)), {"a": FedRep()}), "method a: training.phases is given too"),
    (FedAvg(TRAINING.replace(steps=3), {"fedrep": FedRep()}), "method fedrep: training.steps is given too"),
    (FedAvg(TRAINING, {"a": FedPer(), "b": LGFedAvg()}), "methods a and b: each keeps a part of the network"),
    (FedAvg(TRAINING, {"a": FedRep(), "b": FedRep()}), "methods a and b: each has phases of its own"),
    (FedAvg(TRAINING.replace(momentum_reset=False), {"a": FedRep()}), "method a: .*=False is given too"),
    (FedAvg(TRAINING, {"it": LGFedAvg("Dense_9")}), "method it: network MLP: part Dense_9: the network has no suc"),
    (FedAvg(TRAINING, {"it": LGFedAvg("all - head")}), "LGFedAvg: shared 'all - head': expected parts"),
)
def test_invalid_values_are_rejected(algorithm, message, federation, network):
    check(message, algorithm.check, network)


def test_private_parts_in_a_config():
    config = base.get_config()
    config.methods = dict(fedrep=dict(head_epochs=3))
    config.server.update(weighting="size", batch_norm="local")
    algorithm = build.algorithm(plain(config))
    assert algorithm.local_training.phases == (Phase("head", 3), Phase("body", 1))
    assert set(algorithm.private_part.split("+")) == {"head", "batch_norm"} and algorithm.weights_by == "size"
    config.methods = dict(lg_fedavg=dict(shared="head+Dense_0"))
    assert build.algorithm(plain(config)).private_part == "batch_norm+all - head - Dense_0"


ZEROS = {"a": jnp.zeros((150, 200)), "b": jnp.zeros(20_000)}


def perturb(method, update=ZEROS, clip=None, report=0.0, expected=50.0, key=0):
    shared = () if method.quantile is None else jnp.asarray(method.clip if clip is None else clip)
    key = jax.random.key(key) if isinstance(key, int) else key
    view = NoiseView(shared, jnp.asarray(report), jnp.asarray(expected), jnp.array(0), key)
    return method.perturb(update, view)


def test_the_whole_upload_is_clipped():
    """Over all its arrays together; one that is not finite is 0."""
    update, view = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}, SimpleNamespace(shared=(), memory=())
    sent, _ = DPFedAvg(clip=1.0).upload(update, view)
    assert (float(sent["a"][0]), float(sent["b"][0])) == pytest.approx((0.6, 0.8))
    sent, _ = DPFedAvg(clip=6.0).upload(update, view)
    assert sent == update
    for wrong in (jnp.nan, jnp.inf):
        sent, _ = DPFedAvg(clip=6.0).upload({**update, "a": jnp.array([wrong])}, view)
        assert not np.any(jax.tree.leaves(sent))


@cases(None, 1000)
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


@cases((0, 0.1105171), (50, 0.0904837), (12.5, 0.1051271))
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
    check("bands with quantile", DPFedAvg(quantile=0.5, bands=2).check)


def test_the_share_of_the_bits():
    assert float(of_sum(1.0, 50 / 20)) == pytest.approx(1.020621, rel=1e-6) and of_sum(0.0, 2.5) == 0
    view = NoiseView(jnp.ones(()), jnp.array(25.0), jnp.array(50.0), jnp.array(0), jax.random.key(0))

    def clip(key):
        return DPFedAvg(quantile=0.5).perturb({}, dataclasses.replace(view, key=key))[1]

    bits = np.log(np.asarray(jax.vmap(clip)(jax.random.split(view.key, 400)))) / -0.2
    assert bits.std() == pytest.approx(1 / 20, rel=0.15)  # of the mean bit
    assert DPFedAvg(quantile=0.5).noise(50) == (1.0, 50, 1) and DPFedAvg(noise_cohort_size=90).noise(50) == (1.0, 90, 1)
    check(r"noise_multiplier 1 with quantile: expected less than twice .* 0.5", DPFedAvg(quantile=0.5).noise, 10)
