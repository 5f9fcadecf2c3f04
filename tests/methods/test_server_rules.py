"""FedExP and CCVR: test vectors, CCVR's rounds in NumPy, both next to other methods, and what is rejected."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TRAINING, assert_close, assert_same_bits, cases, check, one_line
from conftest import run_at_once as run

from fedjax_collapse import Batch, FedAvg, Model, Participation, engine, methods, nn
from fedjax_collapse.core.records import Variables
from fedjax_collapse.data.batches import shuffled_rows
from fedjax_collapse.methods.classifier.ccvr import CCVR, class_moments
from fedjax_collapse.methods.server.fedexp import FedExP
from fedjax_collapse.run.simulation import Hardware, Run, Schedule, simulate_runs

DECORR = {"feddecorr": methods.FedDecorr(0.1, "official")}


def extrapolate(method, start, rounds):
    """Params after each round whose clients send these updates, and as evaluated."""
    params, after = {"w": jnp.array(start)}, []
    shared = method.init_shared(Variables(params, {}), None)
    for updates in np.array(rounds):
        report = jnp.asarray(np.mean(np.sum(updates**2, axis=1))), jnp.array(float(len(updates)))
        shared = method.combine(shared, report)
        moved = method.aggregate({"w": jnp.asarray(updates.mean(axis=0))}, shared, report)
        before, params = params, jax.tree.map(jnp.add, params, moved)
        shared = method.after_round(shared, Variables(before, {}), Variables(params, {}), ())
        scored = method.evaluated(Variables(params, {}), shared, None).params
        after.append((params["w"].tolist(), scored["w"].tolist()))
    return after


UPDATES = [[[-0.4, 0.2], [0.3, 0.5]], [[0.1, -0.6], [-0.2, 0.5]]]


def test_fedexp_of_two_clients(float64):
    first, second = extrapolate(FedExP(), [1.0, 2.0], UPDATES)
    assert_close(first, ([0.9468503937, 2.3720472441],) * 2, 1e-10)
    assert_close(second, ([-0.2317210349, 1.1934758155], [0.3575646794, 1.7827615298]), 1e-10)
    last = extrapolate(FedExP(evaluate="last"), [1.0, 2.0], UPDATES)[1]
    assert_close(last, (second[0], second[0]), 1e-12)


@cases(
    (FedExP(variant="paper"), 0.135 / 0.126),
    (FedExP(eps=0.02, eps_decay=0.5), 0.135 / (0.125 + 0.02)),
    (FedExP(eps=0.002, eps_decay=0.5), 0.135 / (0.125 + 0.002)),
    (FedExP(eps=10.0), 1.0),
)
def test_options_of_fedexp(method, eta, float64):
    """``eps`` decays before its first use."""
    after = extrapolate(method, [1.0, 2.0], UPDATES)[0][0]
    assert_close(after, [1 - 0.05 * max(eta, 1), 2 + 0.35 * max(eta, 1)], 1e-12)


def test_fedexp_of_nothing():
    """Updates of 0, and a single one, are not extrapolated."""
    assert extrapolate(FedExP(), [1.0, 2.0], np.zeros((2, 2, 2))) == [([1.0, 2.0], [1.0, 2.0])] * 2
    assert_close(extrapolate(FedExP(eps=1e-12), [0.0, 0.0], [[[3.0, 4.0]]])[0][0], [3.0, 4.0], 0)


@pytest.mark.slow
def test_a_server_optimizer_and_fednova_get_what_fedexp_makes_of_the_mean(float64, federation, network):
    chosen, sgd = {"fedexp": FedExP(), "fednova": methods.FedNova(), **DECORR}, jax.tree_util.Partial(optax.sgd, 1.0)
    result = run(federation, network, FedAvg(TRAINING, chosen), rounds=2)
    stepped = run(federation, network, FedAvg(TRAINING, chosen, server_optimizer=sgd), rounds=2)
    assert_close(stepped.variables, result.variables, 1e-12)


VIRTUAL_FEATURES_ON_TWO_DEVICES = """
import jax
from fedjax_collapse.methods.classifier.ccvr import virtual_features
jax.config.update("jax_num_cpu_devices", 2)
draw = jax.jit(jax.vmap(lambda roots: virtual_features(jax.random.key(0), roots[:, 0], roots @ roots.mT, 3)))
everywhere = jax.NamedSharding(jax.make_mesh((2,), ("clients",)), jax.P())
roots = jax.device_put(jax.random.normal(jax.random.key(1), (1, 10, 128, 128)), everywhere)  # of 64 they do not
for _ in range(2):
    draw(roots).block_until_ready()
"""


@pytest.mark.slow
def test_virtual_features_on_several_devices():
    """CPU devices that decompose batches of matrices at the same time wait for each other forever."""
    subprocess.run([sys.executable, "-c", VIRTUAL_FEATURES_ON_TWO_DEVICES], check=True, timeout=120)


def calibrate(kernel, bias, total, method, features):
    """The head after the training on the features of each class [classes, samples, d], in plain NumPy."""
    samples, head, velocity = features.shape[1], [kernel.copy(), bias.copy()], [0.0, 0.0]
    present = np.flatnonzero(np.asarray(total.counts) > 0)
    rows = np.concatenate([np.arange(c * samples, (c + 1) * samples) for c in present])
    others = np.setdiff1d(np.arange(len(features) * samples), rows)
    key = jax.random.split(jax.random.key(total.seed))[1]
    for epoch in range(method.epochs):
        order = shuffled_rows(jax.random.fold_in(key, epoch), jnp.array([*rows, *others]), len(rows))
        order = np.asarray(order)[: len(rows)]
        for first in range(0, len(rows), method.batch_size):
            batch = order[first : first + method.batch_size]
            x, y = features.reshape(-1, features.shape[2])[batch], batch // samples
            logits = (x @ head[0] + head[1])[:, present]
            error = np.zeros((len(batch), len(features)))
            exponential = np.exp(logits - logits.max(1, keepdims=True))
            error[:, present] = exponential / exponential.sum(1, keepdims=True)
            error[np.arange(len(batch)), y] -= 1
            for i, gradient in enumerate((x.T @ error / len(batch), error.mean(0))):
                velocity[i] = method.momentum * velocity[i] + gradient
                head[i] = head[i] - method.learning_rate * velocity[i]
    return head


@pytest.fixture(scope="module")
def lopsided(federation):
    """Without any training example of class 3, and with one of class 2."""
    labels = np.asarray(federation.train.labels)
    parts = [rows[np.isin(labels[rows], (0, 1))] for rows in federation.owned_rows()]
    parts[0] = np.append(parts[0], np.flatnonzero(labels == 2)[:1])
    return federation.with_partition(parts)


@pytest.mark.slow
@cases("cohort", "all")
def test_rounds_of_ccvr_equal_a_plain_loop(clients, float64, lopsided, network):
    """The head that is scored, from the features under the server's model of all whose uploads arrived, or of all
    clients; training continues as without. A class without examples keeps its part of the head."""
    method = CCVR(samples=9, epochs=3, batch_size=8, learning_rate=0.5, clients=clients)
    training, start = TRAINING.replace(epochs=2), network.init(jax.random.key(3))
    options = dict(rounds=2, variables=start, participation=Participation(upload_loss=0.5))
    plain = run(lopsided, network, FedAvg(training, DECORR), **options)
    result = run(lopsided, network, FedAvg(training, {"ccvr": method, **DECORR}), **options)
    assert_close(result.state.server.variables, plain.variables, 1e-12)
    assert_same_bits(result.variables.params["Dense_0"], result.state.server.variables.params["Dense_0"])
    arrived = np.flatnonzero(result.clients["arrived"][-1] == 1)
    rows = np.concatenate([lopsided.owned_rows()[c] for c in (arrived if clients == "cohort" else range(5))])
    labels = np.asarray(lopsided.train.labels)[rows]
    images = jnp.asarray((np.asarray(lopsided.train.inputs, float)[rows] - 100) / 64)
    features = network.apply(plain.variables, Batch(images, None, jnp.ones(len(rows), bool)), train=False)[0].features
    total = result.state.server.shared["ccvr"]
    assert total.counts.tolist() == np.bincount(labels, minlength=4).tolist()
    moments = class_moments(total)
    for c in (0, 1):
        own = np.asarray(features)[labels == c]
        assert_close(moments[0][c], own.mean(0), 1e-10)
        assert_close(moments[1][c], np.cov(own.T), 1e-10)
    assert not np.any(moments[1][2:])  # of one example, or none
    key = jax.random.split(jax.random.key(total.seed))[0]
    values, vectors = np.linalg.eigh(moments[1])
    root = np.einsum("cij,cj,ckj->cik", vectors, np.sqrt(np.maximum(values, 0)), vectors)
    drawn = np.asarray(moments[0])[:, None] + np.asarray(jax.random.normal(key, (4, 9, 6))) @ root
    old, new = plain.variables.params["Dense_1"], result.variables.params["Dense_1"]
    kernel, bias = calibrate(np.asarray(old["kernel"]), np.asarray(old["bias"]), total, method, drawn)
    assert_close((new["kernel"], new["bias"]), (kernel, bias), 1e-9)
    assert np.abs(kernel - old["kernel"]).max() > 0.01
    assert_same_bits(new["kernel"][:, 3], old["kernel"][:, 3])
    assert total.counts[3] == 0 and total.counts[2] <= 1 < len(arrived) < 5


@pytest.mark.slow
def test_ccvr_in_every_round(float64, federation, network):
    """In the first round the head is the same as with ``end``, and then the server continues from it; with one class
    nothing changes."""
    small, start = dict(samples=8, epochs=2, batch_size=8), network.init(jax.random.key(3))
    at_end, every = (FedAvg(TRAINING, {"ccvr": CCVR(when, clip=True, **small)}) for when in ("end", "every_round"))
    first = run(federation, network, at_end, variables=start)
    calibrated = run(federation, network, every, variables=start)
    assert_close(calibrated.state.server.variables, first.variables, 1e-10)
    assert calibrated.state.server.shared["ccvr"] == ()
    of_one = np.flatnonzero(np.asarray(federation.train.labels) == 1)
    one_class = federation.with_partition(np.array_split(of_one, 5))
    alone = run(one_class, network, at_end, variables=start)
    assert_close(alone.variables, alone.state.server.variables, 1e-12)


@pytest.mark.slow
def test_ccvr_of_all_clients(float64, of_one_class, network):
    """The same in all layouts and storages, and in runs that go together."""
    of_all = FedAvg(TRAINING, {"ccvr": CCVR(clients="all", samples=8, epochs=2, batch_size=8)})
    options = dict(rounds=4, participation=0.4, evaluate_every=2, key=jax.random.key(5))
    expected = run(of_one_class, network, of_all, **options)
    counts = expected.state.server.shared["ccvr"].counts
    assert counts.tolist() == np.bincount(np.asarray(of_one_class.train.labels)).tolist()
    sharded = engine.Sharded(2, engine.Chunked(2))
    result = run(of_one_class, network, of_all, **options, client_map=sharded, storage="host")
    assert_close((result.state.server, result.variables), (expected.state.server, expected.variables), 1e-9)
    runs = [Run(of_one_class, of_all, jax.random.key(seed)) for seed in (4, 5)]
    together = Hardware(engine.Chunked(1), engine.Vectorized())
    _, result = simulate_runs(runs, network, Schedule(4, 0.4, evaluate_every=2), together)
    assert_close((result.state.server, result.variables), (expected.state.server, expected.variables), 1e-9)


@pytest.mark.slow
def test_ccvr_of_all_clients_after_a_stop(of_one_class, network, tmp_path):
    """Also of a run that is over, whose head follows from its checkpoint."""
    algorithm = FedAvg(TRAINING, {"ccvr": CCVR(clients="all", samples=8, epochs=2, batch_size=8)})
    options = dict(rounds=4, participation=0.4, evaluate_every=2, checkpoint_every=1)
    expected = run(of_one_class, network, algorithm, **options)
    stopped = run(of_one_class, network, algorithm, **options, folder=tmp_path, should_stop=lambda: True)
    assert stopped.rounds_done < 4
    for _ in range(2):
        again = run(of_one_class, network, algorithm, **options, folder=tmp_path)
        assert_same_bits((again.state.server, again.variables), (expected.state.server, expected.variables))


@pytest.mark.slow
def test_ccvr_keeps_single_precision_far_from_zero(federation, network):
    """Of features around 1000 that differ by about 1."""
    start = network.init(jax.random.key(3))
    start.params["Dense_0"]["bias"] = start.params["Dense_0"]["bias"] + 1000
    training = TRAINING.replace(learning_rate=1e-9)
    result = run(federation, network, FedAvg(training, {"ccvr": CCVR(samples=4, epochs=1)}), variables=start)
    images = jnp.asarray((np.asarray(federation.train.inputs, np.float32) - 100) / 64)
    batch = Batch(images, None, jnp.ones(len(images), bool))
    features = np.asarray(network.apply(result.state.server.variables, batch, train=False)[0].features, float)
    _, covariances = class_moments(result.state.server.shared["ccvr"])
    for c in range(4):
        expected = np.cov(features[np.asarray(federation.train.labels) == c].T)
        assert_close(covariances[c], expected, 1e-3)
        assert np.abs(expected).max() < 100


CALIBRATED = {"ccvr": CCVR()}
INVALID = [
    (FedAvg(TRAINING, CALIBRATED, private="head"), "CCVR: private 'head' makes features differ between clients"),
    (FedAvg(TRAINING.replace(freeze="head"), CALIBRATED), "training.freeze 'head' freezes the head"),
    (FedAvg(TRAINING, {**CALIBRATED, "recalibrate": methods.Recalibrate()}), "recalibrate: recalibrate evaluates anot"),
    (FedAvg(TRAINING, {"feddyn": methods.FedDyn(), **CALIBRATED}), "feddyn: feddyn evaluates another"),
    (FedAvg(TRAINING, {"it": CCVR("every_round", clients="all")}), "CCVR: clients 'all' report only .* when='end'"),
    (FedAvg(TRAINING, {"fednova": methods.FedNova(), "it": FedExP()}), "fednova: fednova changes"),
]


@cases(*INVALID)
def test_invalid_values_are_rejected(algorithm, message, network):
    check(message, algorithm.check, network)


def test_ccvr_needs_a_linear_head(federation):
    with one_line(r"has bias \[4\], kernel \[6, 4\], scale \[\]; expected a kernel"):
        FedAvg(TRAINING, CALIBRATED).check(Model(nn.MLP(4, hidden=(6,), head=nn.heads.ETF), federation.input_shape))
