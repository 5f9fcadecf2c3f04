"""Methods on logits, for clients that lack classes: two whole rounds against plain PyTorch, also with FedDecorr;
rounds without effect if no class is missing; and invalid combinations."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits
from conftest import run_at_once as run
from flax import linen
from reference.beside import run_both
from reference.methods import PlainFedDecorr

from fedjax_collapse import MOON, FedAvg, FedDecorr, FedMR, FedProx, FedUV, LocalTraining, Model, UserError, nn
from fedjax_collapse.methods.balanced_softmax import BalancedSoftmax
from fedjax_collapse.methods.fedlc import FedLC
from fedjax_collapse.methods.fedntd import FedNTD
from fedjax_collapse.methods.fedrs import FedRS
from fedjax_collapse.methods.fedvls import FedVLS
from fedjax_collapse.nn.task import REGRESSION

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)
CLASSES = [(0, 1), (2,), (0, 1, 2, 3), (2, 3), (0, 3)]
cross_entropy = torch.nn.functional.cross_entropy


@pytest.fixture(scope="module")
def skewed(federation):
    """Clients with two of the four classes, with one and with all, of 9 to 31 examples."""
    labels, free, parts = np.array(federation.train.labels), set(range(110)), []
    for classes, size in zip(CLASSES, (19, 9, 31, 13, 20), strict=True):
        own = [row for row in sorted(free) if labels[row] in classes][:size]
        parts.append(np.array(own))
        free -= set(own)
    parted = federation.with_partition(parts)
    assert [tuple(np.flatnonzero(counts)) for counts in parted.class_counts()] == CLASSES
    return parted


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


class OnCounts(PlainFedDecorr):
    """A loss on logits and a client's counts, combined with FedDecorr."""

    def __init__(self, task=None, term=None, on_all=False):
        self.task, self.term, self.on_all = task, term, on_all
        self.all_counts = torch.zeros(4)

    def start(self, round, server):
        self.server = server

    def start_client(self, client):
        self.counts = self.all_counts if self.on_all else torch.bincount(client.labels, minlength=4).double()

    def loss(self, step):
        task = cross_entropy(step.logits, step.labels) if self.task is None else self.task(step, self.counts)
        if self.term is not None:
            with torch.no_grad():
                teacher = self.server(step.images)[1]
            task = task + self.term(step, self.counts, teacher)
        return task + self.penalty(step)


def plain_balanced(step, counts):
    return cross_entropy(step.logits + 0.7 * torch.log(counts), step.labels)  # log 0 is -inf: no part of the softmax


def plain_fedlc(step, counts):
    return cross_entropy(step.logits - 0.3 * counts**-0.25, step.labels)


def plain_fedlc_without_own(step, counts):
    shifted = step.logits - 0.02 * torch.clamp(counts, min=1e-8) ** -0.25
    own = shifted.gather(1, step.labels[:, None])
    is_own = torch.nn.functional.one_hot(step.labels, 4).bool()
    return torch.mean(torch.log(torch.sum(torch.exp(shifted)[~is_own].reshape(-1, 3), 1)) - own[:, 0])


def plain_fedrs(step, counts):
    return cross_entropy(step.logits * torch.where(counts > 0, 1.0, 0.3), step.labels)


def plain_fedrs_without_bias(step, counts):
    scales, head = 0.3 + 0.7 * counts / counts.max(), step.network.head
    return cross_entropy(step.features @ head.weight.T * scales, step.labels)


def kl(teacher, student):
    return torch.nn.functional.kl_div(torch.log_softmax(student, 1), torch.softmax(teacher, 1), reduction="batchmean")


def plain_fedntd(step, counts, teacher):
    keep = ~torch.nn.functional.one_hot(step.labels, 4).bool()
    return 0.6 * 3**2 * kl(*(logits[keep].reshape(-1, 3) / 3 for logits in (teacher, step.logits)))


def plain_vls_task(step, counts):
    return cross_entropy(step.logits + torch.log(counts / counts.sum() + 1e-9), step.labels)


def plain_vls_official(step, counts, teacher):
    shares, is_other = counts / counts.sum(), 1 - torch.nn.functional.one_hot(step.labels, 4)
    exponents = is_other * (step.logits - torch.log(shares + 1e-9) + np.log(1 / 4 + 1e-9))
    suppression = torch.sum(shares * (torch.logsumexp(exponents, 0) - np.log(len(exponents))))
    vacant = counts == 0
    return 0.4 * kl(teacher[:, vacant], step.logits[:, vacant]) * (vacant.sum() > 1) + 0.2 * 0.005 * suppression


def plain_vls_paper(step, counts, teacher):
    vacant, total = counts == 0, 0.0
    for label in range(4):
        others = step.logits[step.labels != label, label]
        if counts[label] > 0 and len(others):
            total += counts[label] / counts.sum() * torch.log(torch.exp(others).sum() / len(step.logits))
    return 0.4 * (kl(teacher[:, vacant], step.logits[:, vacant]) if vacant.any() else 0.0) + 0.2 * total


ROUNDS = {
    "balanced_softmax": (BalancedSoftmax(0.7), OnCounts(plain_balanced)),
    "fedlc": (FedLC(0.3), OnCounts(plain_fedlc)),
    "fedlc, others": (FedLC(0.02, "others", "floor"), OnCounts(plain_fedlc_without_own)),
    "fedlc, global": (FedLC(0.3, counts="global"), OnCounts(plain_fedlc, on_all=True)),
    "fedrs": (FedRS(0.3), OnCounts(plain_fedrs)),
    "fedrs, official": (FedRS(0.3, "continuous", use_bias=False), OnCounts(plain_fedrs_without_bias)),
    "fedntd": (FedNTD(0.6, 3.0), OnCounts(term=plain_fedntd)),
    "fedvls": (FedVLS(1.0, 0.4, 0.2), OnCounts(plain_vls_task, plain_vls_official)),
    "fedvls, paper": (FedVLS(0.0, 0.4, 0.2, variant="paper"), OnCounts(term=plain_vls_paper)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_equal_a_plain_pytorch_loop(skewed, name):
    """Three of the five clients in each round, with momentum, weight decay and short last batches."""
    method, plain = ROUNDS[name]
    plain.all_counts = torch.tensor(skewed.class_counts().sum(0)).double()
    methods = {name.partition(",")[0]: method, "feddecorr": FedDecorr(0.1, "official")}
    state, expected = run_both(skewed, methods, plain)
    assert_close(state.server.variables, expected, 1e-9)
    if plain.on_all:
        np.testing.assert_array_equal(state.server.shared["fedlc"], plain.all_counts)


@pytest.fixture(scope="module")
def fedavg(federation, network):
    with jax.enable_x64(True):
        return run(federation, network, FedAvg(TRAINING), rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [BalancedSoftmax(0.0), FedLC(0.0), FedLC(0.0, counts="global"), FedRS(1.0), FedRS(0.1), FedVLS(0.0, 0.3, 1e-12)],
    ids=repr,
)
def test_clients_with_all_classes_and_no_margin_do_federated_averaging(float64, federation, network, fedavg, method):
    """FedRS and FedVLS's distillation have nothing to do where no class is vacant."""
    assert (federation.class_counts() > 0).all()
    result = run(federation, network, FedAvg(TRAINING, {"it": method}), rounds=2)
    assert_close(result.variables, fedavg.variables, 1e-10)


@pytest.mark.slow
def test_methods_change_the_rounds_of_skewed_clients(float64, skewed, network):
    """Each differs from federated averaging and from the others; accuracies in the rows are of plain logits."""
    methods = {"balanced": BalancedSoftmax(), "lc": FedLC(), "rs": FedRS(), "ntd": FedNTD(), "vls": FedVLS()}
    results = {"fedavg": run(skewed, network, FedAvg(TRAINING), rounds=2)}
    results |= {name: run(skewed, network, FedAvg(TRAINING, {name: it}), rounds=2) for name, it in methods.items()}
    kernels = [result.variables.params["Dense_0"]["kernel"] for result in results.values()]
    gaps = [np.abs(a - b).max() for i, a in enumerate(kernels) for b in kernels[:i]]
    assert min(gaps) > 1e-4
    first = {name: result.clients["task_loss"][0] for name, result in results.items()}
    assert first["lc"][1] == 0 < first["rs"][1]  # the client with one class
    assert first["balanced"].mean() < first["fedavg"].mean()
    assert all(np.isfinite(row["accuracy"]) and row["loss"] > 0 for r in results.values() for row in r.metrics)


@pytest.mark.slow
def test_no_gradient_of_a_single_class(float64, skewed, network):
    """For a client with one class, the only one in the softmax, the gradient is 0."""
    alone = skewed.with_partition(skewed.owned_rows()[1:2])
    start = network.init(jax.random.key(3))
    for method in (FedLC(), FedLC(denominator="others"), BalancedSoftmax()):
        result = run(alone, network, FedAvg(TRAINING, {"it": method}), variables=start)
        assert_same_bits(result.variables, start)


@pytest.mark.slow
def test_the_first_step_is_that_of_the_received_model(float64, skewed, network):
    training = TRAINING.replace(steps=1, momentum=0.0)
    result = run(skewed, network, FedAvg(training, {"fedntd": FedNTD(), "fedvls": FedVLS()}))
    assert np.abs(result.clients["fedntd/not_true"]).max() < 1e-12
    assert np.abs(result.clients["fedvls/distillation"]).max() < 1e-12
    assert set(result.clients) >= {"fedvls/logit", "task_loss", "accuracy"}


@pytest.mark.slow
def test_strengths_of_fedvls_are_separate(float64, skewed, network):
    """Each term changes the model by itself; calibration by itself is balanced softmax."""
    plain = run(skewed, network, FedAvg(TRAINING), rounds=2)
    alone = [FedVLS(1.0, 0.0, 0.0), FedVLS(0.0, 1.0, 0.0), FedVLS(0.0, 0.0, 1.0)]
    balanced = run(skewed, network, FedAvg(TRAINING, {"it": BalancedSoftmax(1.0, "eps")}), rounds=2)
    results = [run(skewed, network, FedAvg(TRAINING, {"it": method}), rounds=2) for method in alone]
    assert_close(results[0].variables, balanced.variables, 1e-12)
    for result in results:
        assert not np.allclose(
            result.variables.params["Dense_0"]["kernel"], plain.variables.params["Dense_0"]["kernel"]
        )
    assert not FedVLS(0.0, 0.0, 0.0).enabled() and all(method.enabled() for method in alone)


@pytest.mark.slow
def test_bias_that_is_not_used_stays(float64, skewed, network):
    start = network.init(jax.random.key(3))
    result = run(skewed, network, FedAvg(TRAINING, {"fedrs": FedRS(use_bias=False)}), rounds=2, variables=start)
    assert_close(result.variables.params["Dense_1"]["bias"], start.params["Dense_1"]["bias"], 1e-15)
    assert not np.allclose(result.variables.params["Dense_1"]["kernel"], start.params["Dense_1"]["kernel"])


@pytest.mark.slow
def test_weight_decay_of_a_bias_that_is_not_used(float64, skewed, network):
    """It shrinks unless it is frozen, as in PyTorch, which leaves out what has no gradient; all else is the same."""
    start, training = network.init(jax.random.key(3)), TRAINING.replace(weight_decay=0.1)
    decayed, frozen = (
        run(skewed, network, FedAvg(training.replace(freeze=part), {"fedrs": FedRS(use_bias=False)}), variables=start)
        for part in ("none", "Dense_1/bias")
    )
    biases = [variables.params["Dense_1"].pop("bias") for variables in (start, decayed.variables, frozen.variables)]
    assert_same_bits(biases[2], biases[0])
    assert (np.abs(biases[1]) < np.abs(biases[0])).all()
    assert_close(frozen.variables, decayed.variables, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods", [{"fedlc": FedLC(counts="global"), "fedntd": FedNTD()}, {"fedvls": FedVLS()}], ids=", ".join
)
def test_with_other_regularizers(skewed, network, methods):
    """Every term is logged and finite, in clients that lack classes as in those that do not."""
    others = {"feddecorr": FedDecorr(), "fedmr": FedMR(), "feduv": FedUV(), "moon": MOON(), "fedprox": FedProx()}
    result = run(skewed, network, FedAvg(TRAINING, methods | others), rounds=2, participation=0.6)
    terms = {name.partition("/")[0] for name in result.clients if "/" in name}
    assert terms == {name for name, method in (methods | others).items() if method.has("penalty")}
    per_client = [values for values in result.clients.values() if values.shape == (2, 5)]
    assert all(np.isfinite(values[result.clients["steps"] > 0]).all() for values in per_client)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.variables))


class NormedHead(linen.Module):
    """A classifier with a kernel and a scale."""

    num_classes: int

    @linen.compact
    def __call__(self, features):
        kernel = self.param("kernel", linen.initializers.normal(), (features.shape[1], self.num_classes))
        return features @ kernel * self.param("scale", linen.initializers.ones, ())


def test_invalid_values_are_rejected(federation, network):
    def message(methods, model=network, training=TRAINING):
        with pytest.raises(UserError) as error:
            FedAvg(training, methods).check(model)
        assert "\n" not in str(error.value)
        return str(error.value)

    own = [BalancedSoftmax(), FedLC(), FedRS(), FedVLS()]
    for method in own:
        for other in own:
            assert "methods a and b: each has a task of its own" in message({"a": method, "b": other})
        replaced = TRAINING.replace(task_loss=lambda view: 0.0)
        assert "method a: training.task_loss is given too" in message({"a": method}, training=replaced)
    regression = dataclasses.replace(network, task=REGRESSION)
    for method in (*own, FedNTD()):
        assert "method a: the model's task has no classes, expected one of" in message({"a": method}, regression)
    normed = Model(nn.MLP(4, hidden=(6,), head=NormedHead), federation.input_shape)
    refused = message({"a": FedRS(use_bias=False)}, normed)
    assert refused == (
        "FedRS: use_bias=False needs a linear classifier, that of network MLP has kernel, scale; set use_bias=True"
    )
    FedAvg(TRAINING, {"a": FedRS()}).check(normed)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (FedLC(-1.0), "FedLC: tau -1 is negative"),
        (FedLC(denominator="own"), "FedLC: denominator 'own': expected one of all, others"),
        (FedLC(vacant="eps"), "FedLC: vacant 'eps': expected one of exclude, floor"),
        (FedLC(counts="server"), "FedLC: counts 'server': expected one of local, global"),
        (FedRS(1.5), r"FedRS: alpha 1.5 is outside \[0, 1\]"),
        (FedRS(scale="linear"), "FedRS: scale 'linear': expected one of binary, continuous"),
        (FedNTD(-1.0), "FedNTD: strength -1 is negative"),
        (FedNTD(temperature=0.0), "FedNTD: temperature 0 is not positive"),
        (FedVLS(logit=-1.0), "FedVLS: logit -1 is negative"),
        (FedVLS(variant="code"), "FedVLS: variant 'code': expected one of official, paper"),
        (BalancedSoftmax(tau=-1.0), "BalancedSoftmax: tau -1 is negative"),
        (BalancedSoftmax(vacant="floor"), "BalancedSoftmax: vacant 'floor': expected one of exclude, floor_one, eps"),
    ],
    ids=repr,
)
def test_wrong_values_are_named(method, message):
    with pytest.raises(UserError, match=message):
        FedAvg(LocalTraining(), {"it": method}).check()
