"""FedETF, FedGELA and FedDr+: values and gradients by vectors, their limits, and whole rounds against plain PyTorch."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits, run_at_once
from reference.beside import COHORT_SIZE, KEY, run_library, small_model
from reference.methods import PlainFedDecorr
from reference.networks import TorchCNN
from reference.rounds import TRAINING, PlainFedAvg, Rounds

from fedjax_collapse import REGRESSION, Batch, FedAvg, FedDecorr, Model, Outputs, UserError, nn
from fedjax_collapse.core.options import with_options
from fedjax_collapse.methods.feddr_plus import FedDrPlus
from fedjax_collapse.methods.fedetf import FedETF
from fedjax_collapse.methods.fedgela import FedGELA
from fedjax_collapse.nn.heads import ETF, Linear, Simplex, simplex, simplex_frame

F3, Y = np.array([[1.0, 2, 2], [3, 0, 4], [0, 1, -1]]), np.array([0, 2, 0])
TEACHER = np.array([[0.5, 1, 2], [2, 1, 3], [1, 1, 0]])  # the received model's features
SCALED, COSINES, PRODUCTS = ETF(3, projector_dim=0), Simplex(3), Simplex(3, normalize=False)
FULL, LACKING = (6, 1, 2), (6, 0, 2)
V7 = [
    [-0.1605166687, 0.0160516669, 0.0642066675],
    [0.1174810036, 0.0039558672, -0.0881107527],
    [-0.2888212285, 0.1444106143, 0.1444106143],
]
V7_PLAIN = [
    [-0.2476731717, 0.0619182929, 0.0619182929],
    [0.0702001886, 0.0131223835, -0.0526501414],
    [-0.4928082901, 0.2464041450, 0.2464041450],
]
V8 = [
    [-0.6286933665, 0.2317506425, 0.3969427240],
    [0.3854817946, -0.0991113676, -0.2863704270],
    [-0.3740991030, 0.1615822196, 0.2125168834],
]
V9 = [
    [-0.1043020892, 0.0510755223, 0.0288533001],
    [0.0454140581, -0.0077273248, 0.0048283453],
    [-0.1954273030, 0.0866025404, 0.0643803182],
]
V8_COLD = [
    [-3.4813465474, 1.1113629883, 2.3699835591],
    [2.9366303963, -0.8389819670, -2.0976484294],
    [-1.5412123563, 0.7667507030, 0.7744616533],
]


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


@pytest.mark.parametrize(
    ("method", "head", "counts", "value", "gradient", "of_scale"),
    [
        (FedETF(), SCALED, FULL, 0.8393406453, V7, 0.1401165546),
        (FedETF(), SCALED, LACKING, 0.8393406453, V7, 0.1401165546),
        (FedETF(balanced=False), SCALED, LACKING, 1.3973930683, V7_PLAIN, 0.2881276058),
        (FedETF(vacant="exclude"), SCALED, LACKING, 0.5541428438, None, None),
        (FedGELA(), PRODUCTS, LACKING, 1.5270538191, V8, 0.0),
        (FedGELA(0.2), PRODUCTS, LACKING, 4.4458103239, V8_COLD, 0.0),
        (FedDrPlus(), COSINES, LACKING, 0.5147307265, V9, 0.0),
        (FedDrPlus(1.0), COSINES, LACKING, 0.4947625356, None, 0.0),
        (FedDrPlus(0.0), COSINES, LACKING, 0.6944444444, None, 0.0),
    ],
)
def test_vectors(canonical, method, head, counts, value, gradient, of_scale):
    found, slope, of_s = loss_and_gradients(method, head, counts)
    assert found.dtype == np.float64 and float(found) == pytest.approx(value, abs=1e-9)
    if gradient is not None:
        assert_close(slope, np.array(gradient), 1e-9)
        assert float(of_s) == pytest.approx(of_scale, abs=1e-9)
    steps = 1e-6 * np.eye(9).reshape(9, 3, 3)
    above, below = ([loss_and_gradients(method, head, counts, F3 + d)[0] for d in sign * steps] for sign in (1, -1))
    assert_close(slope.ravel(), (np.array(above) - np.array(below)) / 2e-6, 1e-8)


@pytest.mark.parametrize(
    ("method", "head"),
    [(FedETF(), SCALED), (FedETF(vacant="exclude"), SCALED), (FedGELA(), SCALED), (FedDrPlus(1.0), COSINES)],
)
def test_what_moves_the_features_turns_them_alone(canonical, method, head):
    """Also those of length 1e-8 and 1e8."""
    features = F3 * np.array([[1e-8], [1.0], [1e8]])
    value, slope, _ = loss_and_gradients(method, head, LACKING, features)
    lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(slope, axis=1)
    np.testing.assert_array_less(np.abs(np.sum(features * slope, axis=1)), 1e-14)
    assert lengths.min() > 1e-2
    assert_close(value, loss_and_gradients(method, head, LACKING)[0], 1e-14)


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


def test_two_classes(float64):
    """Antipodes: the loss is that of one logit, 2 s cos."""
    head, features = ETF(2, projector_dim=0), np.array([[1.0, 0.5], [-2.0, 1.0]])
    value, slope, _ = loss_and_gradients(FedETF(), head, (4, 4), features, np.array([0, 1]))
    cosines = features @ simplex._frame(2, 2, 0)[:, 0] / np.linalg.norm(features, axis=1)
    assert float(value) == pytest.approx(np.logaddexp(0, -4 * cosines * [1, -1]).mean(), abs=1e-12)
    assert np.isfinite(slope).all()


def equal_counts(federation):
    """Four clients with four examples of each class."""
    labels = np.asarray(federation.train.labels)
    rows = np.stack([np.flatnonzero(labels == c)[:16].reshape(4, 4) for c in range(4)], axis=1)
    return federation.with_partition(list(rows.reshape(4, 16)))


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedETF(), FedGELA()])
def test_equal_counts_are_federated_averaging(float64, federation, method):
    balanced, model = equal_counts(federation), Model(nn.MLP(4, hidden=(6,), head=ETF), federation.input_shape)
    plain, own = (run_at_once(balanced, model, FedAvg(TRAINING, m), rounds=2) for m in ({}, {"own": method}))
    assert_close(own.variables, plain.variables, 1e-12)


class TorchETF(TorchCNN):
    """The same network with FedETF's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.scale = torch.nn.Parameter(torch.ones(()))
        basis, _ = np.linalg.qr(np.random.default_rng(3).random((4, 4)))
        self.corners = torch.tensor(np.sqrt(4 / 3) * basis @ (np.eye(4) - 1 / 4))

    def forward(self, x):
        features, projected = super().forward(x)
        return features, self.scale * torch.nn.functional.normalize(projected, eps=1e-12) @ self.corners

    def load_head(self, params):
        super().load_head(params["head"])
        self.scale.copy_(params["head"]["scale"])

    def dump_head(self):
        return {"head": {**super().dump_head(), "scale": self.scale}}


class PlainETF(PlainFedDecorr):
    """Together with the released FedDecorr on the features before the projector."""

    def start_client(self, client):
        self.counts = torch.bincount(client.labels, minlength=4).double()

    def loss(self, step):
        logits = step.logits + torch.log(self.counts.clamp(min=1))
        return torch.nn.functional.cross_entropy(logits, step.labels) + self.penalty(step)


class PlainGELA(PlainETF):
    def loss(self, step):
        stretch = 4 * self.counts / self.counts.sum()
        return torch.nn.functional.cross_entropy(step.logits * stretch / 0.5, step.labels)


class TorchSimplex(TorchCNN):
    """The same network whose head has nothing to train."""

    def __init__(self, channels):
        super().__init__(channels)
        basis, _ = np.linalg.qr(np.random.default_rng(3).random((channels[1], 4)))
        self.corners = torch.tensor(np.sqrt(4 / 3) * basis @ (np.eye(4) - 1 / 4))

    def forward(self, x):
        features, _ = super().forward(x)
        return features, torch.nn.functional.normalize(features, eps=1e-12) @ self.corners

    def load_head(self, params):
        assert params.keys() == {"Conv_0", "Conv_1", "BatchNorm_0", "BatchNorm_1"}

    def dump_head(self):
        return {}


class PlainDr(PlainFedAvg):
    def start(self, round, server):
        self.server = server

    def loss(self, step):
        cosines = step.logits[torch.arange(len(step.labels)), step.labels]
        received = self.server(step.images)[0].detach()
        return 0.4 * ((cosines - 1) ** 2).mean() + 0.2 * ((step.features - received) ** 2).mean()


DECAYING = TRAINING.replace(schedule="decay", schedule_factor=0.5)
ETF_DECORR = dict(own=FedETF(), feddecorr=FedDecorr(0.1, "official"))
ROUNDS = {
    "fedetf beside feddecorr": (TRAINING, ETF_DECORR, PlainETF(), ETF, TorchETF),
    "fedetf whose momentum is kept": (DECAYING.replace(momentum_reset=False), ETF_DECORR, PlainETF(), ETF, TorchETF),
    "fedgela": (TRAINING, dict(own=FedGELA(0.5)), PlainGELA(), ETF, TorchETF),
    "feddr_plus": (TRAINING, dict(own=FedDrPlus(0.8)), PlainDr(), Simplex, TorchSimplex),
}


@pytest.fixture(scope="module")
def lacking(federation):
    """Clients of unequal size, of which some lack classes."""
    labels = np.asarray(federation.train.labels)
    parts = [np.flatnonzero(np.isin(labels, classes)) for classes in ((0, 1), (1, 2), (2, 3), (3,), (0, 1, 2, 3))]
    sizes = (23, 13, 41, 9, 19)
    return federation.with_partition([part[:size] for part, size in zip(parts, sizes, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_equal_a_plain_pytorch_loop(float64, lacking, name):
    """Two rounds of three of the five clients."""
    training, methods, method, head, make = ROUNDS[name]
    head = with_options(head, seed=3)
    state = run_library(lacking, FedAvg(training, methods), head=head)
    _, variables = small_model(lacking, head=head)
    rounds = Rounds(lacking, method, variables, training, make)
    expected = rounds.run(jax.random.key(KEY), 2, COHORT_SIZE).server.dump()
    assert_close(state.server.variables, expected, 1e-10)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (expected, variables)), strict=True)]
    assert min(moved) > 1e-3


@pytest.mark.parametrize(
    ("head", "method", "message"),
    [
        ("linear", FedETF(), "FedETF: network MLP has no fixed simplex of classifiers; set network.head='etf', in"),
        ("linear", FedGELA(), "FedGELA: network MLP has no fixed simplex"),
        ("etf", FedETF(), r"head 'etf': expected linear, or what makes a module, such as nn\.heads\.ETF"),
        (Simplex, FedETF(), "4 classes on 3 features, expected at least two classes and as many features; widen"),
        (with_options(ETF, projector_dim=3), FedETF(), "4 classes on 3 features"),
        (ETF, FedETF(vacant="eps"), "FedETF: vacant 'eps': expected one of floor_one, exclude"),
        (ETF, FedGELA(0.0), "FedGELA: temperature 0 is not positive"),
        (Linear, FedDrPlus(), r"classifiers; set network\.head='simplex', in Python .*heads\.Simplex"),
        (ETF, FedDrPlus(), "FedDrPlus: expected cosines of the features as logits; set network.head=.simplex"),
        (ETF, FedDrPlus(2.0), r"FedDrPlus: beta 2 is outside \[0, 1\]"),
        (ETF, {"a": FedETF(), "b": FedGELA()}, "methods a and b: each has a task of its own"),
    ],
)
def test_wrong_values(federation, head, method, message):
    methods = method if isinstance(method, dict) else {"it": method}
    with pytest.raises(UserError, match=message):
        FedAvg(TRAINING, methods).check(Model(nn.MLP(4, hidden=(3,), head=head), federation.input_shape))


@pytest.mark.slow
def test_other_tasks_and_single_classes(federation):
    model = Model(nn.MLP(4, hidden=(6,), head=ETF), federation.input_shape, task=REGRESSION)
    with pytest.raises(UserError, match="FedETF: expected the task of classification"):
        FedAvg(TRAINING, {"it": FedETF()}).check(model)
    with pytest.raises(UserError, match="1 classes on 1 features"):
        Model(nn.MLP(1, head=ETF), (8, 8, 2)).initial_shapes()
