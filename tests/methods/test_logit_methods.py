"""Methods on logits, for clients that lack classes: where no class is missing, in the first step, and without bias."""

import jax
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits
from conftest import run_at_once as run
from flax import linen

from fedjax_collapse import FedAvg, LocalTraining, Model, UserError, nn
from fedjax_collapse.methods.classifier.fedrs import FedRS
from fedjax_collapse.methods.classifier.fedvls import FedVLS
from fedjax_collapse.methods.drift.fedntd import FedNTD

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)


@pytest.fixture(scope="module")
def fedavg(federation, network):
    with jax.enable_x64(True):
        return run(federation, network, FedAvg(TRAINING), rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [FedRS(0.1), FedVLS(0.0, 0.3, 1e-12)],
    ids=repr,
)
def test_clients_with_all_classes_and_no_margin_do_federated_averaging(float64, federation, network, fedavg, method):
    """FedRS and FedVLS's distillation have nothing to do where no class is vacant."""
    assert (federation.class_counts() > 0).all()
    result = run(federation, network, FedAvg(TRAINING, {"it": method}), rounds=2)
    assert_close(result.variables, fedavg.variables, 1e-10)


@pytest.mark.slow
def test_the_first_step_is_that_of_the_received_model(float64, skewed, network):
    training = TRAINING.replace(steps=1, momentum=0.0)
    result = run(skewed, network, FedAvg(training, {"fedntd": FedNTD(), "fedvls": FedVLS()}))
    assert np.abs(result.clients["fedntd/not_true"]).max() < 1e-12
    assert np.abs(result.clients["fedvls/distillation"]).max() < 1e-12
    assert set(result.clients) >= {"fedvls/logit", "task_loss", "accuracy"}


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


class NormedHead(linen.Module):
    """A classifier with a kernel and a scale."""

    num_classes: int

    @linen.compact
    def __call__(self, features):
        kernel = self.param("kernel", linen.initializers.normal(), (features.shape[1], self.num_classes))
        return features @ kernel * self.param("scale", linen.initializers.ones, ())


def test_fedrs_without_bias_needs_a_linear_classifier(federation):
    normed = Model(nn.MLP(4, hidden=(6,), head=NormedHead), federation.input_shape)
    with pytest.raises(UserError) as error:
        FedAvg(TRAINING, {"a": FedRS(use_bias=False)}).check(normed)
    assert str(error.value) == (
        "FedRS: use_bias=False needs a linear classifier, that of network MLP has kernel, scale; set use_bias=True"
    )
    FedAvg(TRAINING, {"a": FedRS()}).check(normed)
