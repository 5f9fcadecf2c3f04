"""FedETF, FedGELA and FedDr+: values by test vectors, gradients by finite differences, and their limits."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, cases, check, one_line
from reference.rounds import TRAINING

from fedjax_collapse import Batch, FedAvg, Model, Outputs, nn
from fedjax_collapse.methods.classifier.feddr_plus import FedDrPlus
from fedjax_collapse.methods.classifier.fedetf import FedETF
from fedjax_collapse.methods.classifier.fedgela import FedGELA
from fedjax_collapse.nn.heads import ETF, Linear, Simplex, simplex, simplex_frame
from fedjax_collapse.schema.options import with_options

F3, Y = np.array([[1.0, 2, 2], [3, 0, 4], [0, 1, -1]]), np.array([0, 2, 0])
TEACHER = np.array([[0.5, 1, 2], [2, 1, 3], [1, 1, 0]])  # the received model's features
SCALED, COSINES, PRODUCTS = ETF(3, projector_dim=0), Simplex(3), Simplex(3, normalize=False)
FULL, LACKING = (6, 1, 2), (6, 0, 2)


@pytest.fixture
def canonical(monkeypatch, float64):
    """The simplex whose P is the identity."""
    monkeypatch.setattr(simplex, "_frame", lambda dim, num_classes, seed: simplex_frame(np.eye(dim, num_classes)))


def loss_and_gradients(method, head, counts, features=F3, labels=Y, mask=None):
    """The loss of a batch, and its gradients with respect to the features and to a scale of 2."""
    mask = np.ones(len(labels), bool) if mask is None else mask
    others = jnp.asarray(counts), jnp.asarray(labels), jnp.asarray(mask)
    value, gradients = compiled(method, head)(jnp.asarray(features), jnp.asarray(2.0), *others)
    return value, *gradients


@functools.cache
def compiled(method, head):
    return jax.jit(jax.value_and_grad(functools.partial(loss_of, method, head), (0, 1)))


def loss_of(method, head, features, scale, counts, labels, mask):
    params = {"params": {"scale": scale}} if isinstance(head, ETF) else {}
    batch, outputs = Batch(None, labels, mask), Outputs(features, head.apply(params, features))
    frozen = {"received": Outputs(jnp.resize(TEACHER, features.shape), None)}
    view = SimpleNamespace(outputs=outputs, batch=batch, class_counts=counts, frozen=frozen)
    terms = method.penalty(view).values() if method.has("penalty") else ()
    return method.task(view) + sum(term.strength * term.value for term in terms)


@cases(
    (FedETF(), SCALED, FULL, 0.8393406453, 0.1401165546),
    (FedETF(), SCALED, LACKING, 0.8393406453, 0.1401165546),
    (FedETF(balanced=False), SCALED, LACKING, 1.3973930683, 0.2881276058),
    (FedETF(vacant="exclude"), SCALED, LACKING, 0.5541428438, None),
    (FedGELA(), PRODUCTS, LACKING, 1.5270538191, 0.0),
    (FedGELA(0.2), PRODUCTS, LACKING, 4.4458103239, 0.0),
    (FedDrPlus(), COSINES, LACKING, 0.5147307265, 0.0),
    (FedDrPlus(1.0), COSINES, LACKING, 0.4947625356, 0.0),
    (FedDrPlus(0.0), COSINES, LACKING, 0.6944444444, 0.0),
)
def test_vectors(method, head, counts, value, of_scale, canonical):
    found, slope, of_s = loss_and_gradients(method, head, counts)
    assert found.dtype == np.float64 and float(found) == pytest.approx(value, abs=1e-9)
    assert of_scale is None or float(of_s) == pytest.approx(of_scale, abs=1e-9)
    steps = 1e-6 * np.eye(9).reshape(9, 3, 3)
    above, below = ([loss_and_gradients(method, head, counts, F3 + d)[0] for d in sign * steps] for sign in (1, -1))
    assert_close(slope.ravel(), (np.array(above) - np.array(below)) / 2e-6, 1e-8)


@pytest.mark.parametrize("method", [FedETF(), FedETF(vacant="exclude"), FedGELA(), FedDrPlus()])
@pytest.mark.parametrize("head", [SCALED, PRODUCTS])
def test_padding_says_nothing(canonical, method, head):
    """Whatever its rows are."""

    def padded(rows, labels):
        garbage = np.concatenate([F3, rows]), np.concatenate([Y, labels]), np.arange(5) < 3
        return loss_and_gradients(method, head, LACKING, *garbage)

    value, slope, of_scale = padded(np.full((2, 3), 1e3), [1, 1])
    assert_same_bits((value, slope, of_scale), padded(np.array([[0.0, 0, 0], [-1e30, 1, 5]]), [0, 2]))
    if head == PRODUCTS:  # no length is taken, which of NaN has no gradient of 0
        assert_same_bits((value, slope, of_scale), padded(np.array([[np.nan, 0, 1], [np.inf, 1, 0]]), [0, 2]))
    assert not np.any(slope[3:])
    assert_close((value, slope[:3], of_scale), loss_and_gradients(method, head, LACKING), 1e-15)


@pytest.mark.parametrize("method", [FedETF(), FedETF(vacant="exclude"), FedGELA(), FedDrPlus(1.0)])
@pytest.mark.parametrize("head", [SCALED, PRODUCTS])
def test_nothing_is_nan(canonical, method, head):
    """One present class, no class, no true row, one row, rows of zeros, of which the gradient is 0."""
    own = F3[:1], Y[:1]
    cases = [((5, 0, 0), *own), ((0, 0, 0), F3, Y, np.zeros(3, bool)), ((0, 0, 1), 0 * F3, np.full(3, 2))]
    for counts, *batch in cases:
        for leaf in loss_and_gradients(method, head, counts, *batch):
            assert np.isfinite(leaf).all()
    value, slope, of_scale = loss_and_gradients(method, head, FULL, 0 * F3)
    assert value > 0 and of_scale == 0 and (head == PRODUCTS or not slope.any())
    assert not any(map(np.any, loss_and_gradients(method, head, (0, 0, 0), F3, Y, np.zeros(3, bool))))
    alone = loss_and_gradients(method, head, (5, 0, 0), *own)
    is_silent = method == FedETF(vacant="exclude")
    assert is_silent == (not any(map(np.any, alone[:2])))


@cases(
    ("linear", FedETF(), "FedETF: network MLP has no fixed simplex of classifiers; set network.head='etf', in"),
    ("linear", FedGELA(), "FedGELA: network MLP has no fixed simplex"),
    ("etf", FedETF(), r"head 'etf': expected linear, or a class of heads such as nn\.heads\.ETF"),
    (Simplex, FedETF(), "4 classes on 3 features, expected at least two classes and as many features; widen"),
    (with_options(ETF, projector_dim=3), FedETF(), "4 classes on 3 features"),
    (Linear, FedDrPlus(), r"classifiers; set network\.head='simplex', in Python .*heads\.Simplex"),
    (ETF, FedDrPlus(), "FedDrPlus: expected cosines of the features as logits; set network.head=.simplex"),
)
def test_wrong_values(head, method, message, federation):
    with one_line(message):
        FedAvg(TRAINING, {"it": method}).check(Model(nn.MLP(4, hidden=(3,), head=head), federation.input_shape))


def test_a_single_class():
    check("1 classes on 1 features", Model(nn.MLP(1, head=ETF), (8, 8, 2)).initial_shapes)
