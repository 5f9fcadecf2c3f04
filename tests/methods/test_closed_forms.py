"""Fed3R, AFL, FedCGS and GH-OFL: vectors, any partition, padding, single precision, training from them, wrong input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_same_bits, cases, check
from engine_rounds import start_rounds

from fedjax_collapse import DeCov, FedAvg, Federation, LocalTraining, Method, Model, engine, nn, simulate
from fedjax_collapse.core.records import Batch
from fedjax_collapse.methods import AFL, GHOFL, Fed3R, FedCGS
from fedjax_collapse.schema.options import with_options

X = np.array([[1.0, 0], [2, 1], [0, 1], [1, 1], [-1, 2]])
Y = np.array([0, 1, 1, 0, 2])
PARTS = [[0, 1], [2, 3, 4]]
ONE_BY_ONE = engine.Chunked(1)
VECTORS = {  # kernel [d, classes] and bias
    "afl": (AFL(), [[0.2708333333, 0.25, -0.1875], [0.1041666667, 0.25, 0.3125]], [0.0, 0, 0]),
    "afl, not cleaned": (
        AFL(gamma=0.5),
        [[0.2380952381, 0.2222222222, -0.1587301587], [0.0952380952, 0.2222222222, 0.2698412698]],
        [0.0, 0, 0],
    ),
    "fedcgs": (
        FedCGS(),
        np.transpose([[1.875, 2.875], [2.5, 4.5], [1.25, 5.25]]),
        [-2.5725407319, -4.4162907319, -6.2344379124],
    ),
    "fedcgs, within": (FedCGS("within"), [[1, 1, -1], [2, 4, 8]], [-1.9162907319, -3.4162907319, -10.1094379124]),
    "fedcgs, shrunk": (
        FedCGS("within", 0.3),
        np.transpose([[1.1267592938, 1.3793065398], [1.1267592938, 2.7586130797], [-1.1267592938, 5.5172261594]]),
        [-1.8244970137, -2.8589769186, -7.6900437184],
    ),
    "fed3r": (
        Fed3R(normalize=False),
        [[-0.0557154106, 0.2484691736, -0.1878728031], [-0.548077287, 0.2472512173, 0.3105849445]],
        [0.9795474385, 0.0036599587, 0.0021344684],
    ),
}
METHODS = {name: method for name, (method, *_) in VECTORS.items()}


def linear(inputs, labels, parts, test=None, **options):
    """A federation of vectors, and the linear model on them."""
    classes = tuple(map(str, range(1 + max(labels))))
    test_inputs, test_labels = (inputs, labels) if test is None else test
    made = Federation.from_inputs(inputs, labels, parts, test_inputs, test_labels, class_names=classes, **options)
    return made, Model(nn.MLP(len(classes), hidden=()), inputs.shape[1:])


def first_model(*arguments):
    """Kernel and bias before the first round."""
    layer = first_variables(*arguments).params["Dense_0"]
    return layer["kernel"], layer["bias"]


def first_variables(federation, model, method, training=LocalTraining(batch_size=2), client_map=ONE_BY_ONE):  # noqa: B008
    """The variables before the first round."""
    algorithm = FedAvg(training, {"it": method})
    algorithm.check(model)
    _, _, state, *_ = start_rounds(federation, model, algorithm, client_map)
    return jax.device_get(state.server.variables)


class Sines(nn.MLP):
    """The sines of its inputs, as a federation's inputs are in single precision."""

    def represent(self, images, mask, train):
        return jnp.sin(images.astype(jnp.result_type(float)))


def gaussian_logits(method, inputs, labels, parts, tests, network=nn.MLP, **options):
    """Logits of the tests by the first model."""
    federation, model = linear(inputs, labels, parts)
    quadratic = with_options(nn.heads.Quadratic, diagonal=method.classifier == "naive_bayes")
    head = "linear" if method.classifier == "lda" else quadratic
    model = Model(network(model.module.num_classes, hidden=(), head=head), model.input_shape)
    batch = Batch(jnp.asarray(tests), jnp.zeros(len(tests), jnp.int32), jnp.ones(len(tests), bool))
    variables = first_variables(federation, model, method, **options)
    return np.asarray(jax.jit(lambda: model.apply(variables, batch, train=False)[0].logits)())


GAUSSIANS = {  # with logits of one row, and those less the first where another class has one example alone
    "naive_bayes": (
        GHOFL("naive_bayes"),
        [-0.6681670914, -5.006988826, -1.542984050],
        [0, -3.7967374999, -0.3327327239, -1150426.0896747],
    ),
    "lda": (
        GHOFL("lda", 0.05),
        [0.7668123334, -1.386547276, -0.4108515698],
        [0, -1.3601475044, -0.8088974460, -2.4616670920],
    ),
    "qda": (GHOFL("qda"), [-9.281511284, -3.610195836, -4.305210263], [0, 5.9030791832, 5.2080647558, 5.5105450374]),
}


@pytest.mark.parametrize("name", GAUSSIANS)
def test_gaussians(float64, name):
    """Logits of a test vector, of all clients whatever their parts; of one example the common covariance."""
    (method, expected, of_four), numbers = GAUSSIANS[name], np.arange(1, 49.0).reshape(12, 4) ** 2
    labels, parts = np.arange(12) % 3, [[0, 4, 5, 7, 11], [2], [1, 3, 6, 8, 9, 10]]
    logits = functools.partial(gaussian_logits, method, numbers, parts=parts, tests=numbers + np.pi / 2, network=Sines)
    for at_once in (1, 2):
        np.testing.assert_allclose(logits(labels, client_map=engine.Chunked(at_once))[0], expected, rtol=0, atol=1e-9)
    labels[0] = 3
    found = logits(labels)[0]
    np.testing.assert_allclose(found - found[0], of_four, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", GAUSSIANS)
def test_gaussians_in_single_precision(name):
    """Of features far from 0, of which one is constant; a class without examples is never predicted."""
    inputs, labels = relu_features(600, 16, offset=8.0)
    inputs[:, 0], (method, *_) = 3, GAUSSIANS[name]
    single, double = [], []
    for is_double, found in ((False, single), (True, double)):
        with jax.enable_x64(is_double):
            logits = gaussian_logits(method, inputs, 2 * labels, np.array_split(np.arange(600), 5), inputs)
            assert np.isfinite(logits).all() and (logits[:, 1::2].max(axis=1) < logits[:, ::2].min(axis=1)).all()
            found.append(logits[:, ::2] - logits[:, ::2].mean(axis=1, keepdims=True))
    np.testing.assert_allclose(single, double, atol=2e-3 * np.abs(double).max())
    assert (np.argmax(single[0], axis=1) == labels).mean() > 0.8


def test_gaussians_are_trained(float64):
    federation, model = data_of_features()
    model = model.with_module(head=nn.heads.Quadratic)
    algorithm = FedAvg(LocalTraining(learning_rate=1e-4), {"it": GHOFL(finetune=True)})
    start = first_variables(federation, model, algorithm.methods["it"])
    result = simulate(federation, model, algorithm, rounds=1, key=jax.random.key(0))
    for name, leaf in start.params["head"].items():
        own = np.asarray(result.variables.params["head"][name])
        assert np.isfinite(own).all() and np.any(own != leaf)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_any_partition(float64, name):
    """However examples are divided and ordered, however long batches and tables are, and with a padded client among
    those that are computed side by side."""
    method, *expected = VECTORS[name]
    layouts = (PARTS, {}, 2, ONE_BY_ONE), ([[4, 2], [3, 0, 1]], dict(capacity=6), 7, engine.Chunked(3))
    for parts, options, batch_size, client_map in layouts:
        data = linear(X, Y, parts, **options)
        found = first_model(*data, method, LocalTraining(batch_size=batch_size), client_map)
        for array, own in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, own, atol=1e-9)


def test_normalised_classes_of_fed3r(float64):
    """Weights of length 1, and a bias divided by the same; a class without examples keeps its zeros, and is never
    predicted by FedCGS."""
    (kernel, bias), plain = (first_model(*linear(X, Y, PARTS), Fed3R(normalize=n)) for n in (True, False))
    length = np.linalg.norm(plain[0], axis=0)
    np.testing.assert_allclose(kernel, plain[0] / length, rtol=1e-12)
    np.testing.assert_allclose(bias, plain[1] / length, rtol=1e-12)
    assert (X @ kernel + bias).argmax(axis=1).tolist() == [0, 1, 2, 1, 2]
    kernel, bias = first_model(*linear(X, 2 * Y, PARTS), Fed3R())
    assert not kernel[:, 1::2].any() and not bias[1::2].any() and np.isfinite(kernel).all()
    kernel, bias = first_model(*linear(X, 2 * Y, PARTS), FedCGS())
    assert set((X @ kernel + bias).argmax(axis=1)) <= {0, 2, 4} and (bias[1::2] < -1e8).all()


def relu_features(count, dim, offset=0.5):
    """Features like those below a classifier: not negative, and far from 0 compared with their deviations."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    hidden = (rng.normal(size=(10, 20))[labels] + rng.normal(size=(count, 20))) @ rng.normal(size=(20, dim)) / 4
    return np.maximum(hidden + offset, 0).astype(np.float32), labels


@pytest.mark.parametrize("name", METHODS)
def test_single_precision(name):
    """Of features that are always 0, equal, or sums of others, the predictions are those of double precision."""
    inputs, labels = relu_features(3000, 64)
    inputs[:, 0], inputs[:, 1], inputs[:, 2] = 0, inputs[:, 3], inputs[:, 4] + inputs[:, 5]
    parts = np.array_split(np.arange(3000), 5)
    found = []
    for is_double in (False, True):
        with jax.enable_x64(is_double):
            kernel, bias = first_model(*linear(inputs, labels, parts), METHODS[name], LocalTraining(batch_size=64))
            assert np.isfinite(kernel).all() and kernel.dtype == (np.float64 if is_double else np.float32)
            found.append(inputs.astype(float) @ kernel + bias)
    single, double = (logits - logits.mean(axis=1, keepdims=True) for logits in found)
    np.testing.assert_allclose(single, double, atol=2e-3 * np.abs(double).max())
    assert np.mean(single.argmax(axis=1) == double.argmax(axis=1)) > 0.998


def test_fewer_examples_than_features(float64):
    """The smallest least-squares solution, which predicts the training examples; FedCGS in the span of the examples."""
    inputs, labels = relu_features(30, 64)
    federation, model = linear(inputs, labels, np.array_split(np.arange(30), 3))
    kernel, _ = first_model(federation, model, AFL())
    expected = np.linalg.pinv(inputs.astype(float)) @ np.eye(10)[labels]
    np.testing.assert_allclose(kernel, expected, atol=1e-6)
    for method in (FedCGS(), FedCGS("within"), Fed3R()):
        kernel, bias = first_model(federation, model, method)
        assert np.isfinite(kernel).all() and np.isfinite(bias).all()
        assert ((inputs @ kernel + bias).argmax(axis=1) == labels).mean() > 0.9


def data_of_features():
    inputs, labels = relu_features(600, 16)
    parts = [np.flatnonzero(labels[:400] % 4 == client) for client in range(4)]
    return linear(inputs[:400], labels[:400], parts, (inputs[400:], labels[400:]))


@cases(("device", ("afl", "fedcgs", "fed3r")), ("host", ("fedcgs, within",)))
def test_the_classifier_is_evaluated_and_stays(storage, names):
    """In every round, with part of the clients, while nothing is trained; from either storage."""
    federation, model = data_of_features()
    options = dict(rounds=2, key=jax.random.key(0), participation=engine.Participation(0.5), storage=storage)
    for method in map(METHODS.get, names):
        algorithm = FedAvg(LocalTraining(learning_rate=0.5, weight_decay=0.1), {"it": method})
        result = simulate(federation, model, algorithm, **options)
        kernel, bias = first_model(federation, model, method, LocalTraining())
        layer = result.variables.params["Dense_0"]
        np.testing.assert_allclose(layer["kernel"], kernel, rtol=1e-3, atol=1e-4)
        logits = np.asarray(federation.test.inputs) @ kernel + bias
        accuracy = np.mean(logits.argmax(axis=1) == np.asarray(federation.test.labels))
        assert [row["accuracy"] for row in result.metrics] == pytest.approx([accuracy] * 2) and accuracy > 0.6


def test_a_resumed_run_does_not_start_again(tmp_path):
    federation, model = data_of_features()
    algorithm = FedAvg(LocalTraining(learning_rate=0.1), {"fed3r": Fed3R(finetune=True)})
    run = functools.partial(simulate, federation, model, algorithm, key=jax.random.key(0))
    whole = run(rounds=2)
    run(rounds=1, folder=tmp_path)
    assert_same_bits(run(rounds=2, folder=tmp_path).variables, whole.variables)


class NoReport(Method):
    def apply(self, variables, measured, model):
        return variables


LINEAR = Model(nn.MLP(3), (2,))
REJECTED = [
    (FedAvg(methods={"it": GHOFL("naive_bayes")}), Model(nn.MLP(3, head=nn.heads.Quadratic), (2,)),
     r"GHOFL: the head has bias \[3\], mean .*, root \[3, 128, 128\]; expected a mean .* root \[3, 128\] "),
    (FedAvg(methods={"it": GHOFL()}), LINEAR, "set network.head='quadratic'"),
    (FedAvg(methods={"it": AFL()}, private="head"), LINEAR, "AFL: private 'head' makes features or"),
    (FedAvg(methods={"it": Fed3R()}), Model(nn.MLP(3, head=nn.heads.ETF), (2,)),
     r"Fed3R: the head has .*; expected a kernel \[128, 3\] and a bias"),
    (FedAvg(methods={"it": NoReport()}), LINEAR, "method it: it has a hook apply, expected"),
    (FedAvg(methods={"it": AFL(), "decov": DeCov()}), LINEAR,
     "methods it and decov: it trains nothing, so decov would have no effect; set finetune=True"),
]  # fmt: skip


@cases(*REJECTED)
def test_wrong_input_is_one_line(algorithm, model, message):
    check(message, algorithm.check, model)
