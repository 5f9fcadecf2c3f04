"""Methods with a head of their own, or whose head is never trained."""

import copy
import itertools

import jax
import torch
from conftest import assert_close

from reference.networks import TorchCNN, of_linear
from reference.rounds import BODY, PlainFedAvg, cross_entropy, sgd


class PlainFedBABU(PlainFedAvg):
    phases = ((BODY, 2),)


class TorchTwoHeads(TorchCNN):
    """The same network with FedRoD's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.personal = torch.nn.Linear(channels[1], 4)

    def of_head(self):
        return of_linear("head", self.head) | of_linear("head/personal", self.personal)


class PlainFedRoD(PlainFedAvg):
    """With FL-bench's loss of the personal head, or the paper's."""

    private = ("personal",)

    def __init__(self, alone):
        self.is_alone = alone

    def start_client(self, client):
        self.prior = torch.log(self.counts[client.id])

    def loss(self, step):
        balanced = cross_entropy(step.logits + 0.8 * self.prior, step.labels)
        if self.is_alone:
            return balanced + cross_entropy(step.network.personal(step.features), step.labels)
        personal = step.logits.detach() + step.network.personal(step.features.detach())
        return balanced + cross_entropy(personal, step.labels)


class TorchShifted(TorchCNN):
    """The same network with FedDBE's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.shift = torch.nn.Parameter(torch.zeros(channels[1]))

    def forward(self, x):
        features, _ = super().forward(x)
        return features, self.head(features + self.shift)

    def of_head(self):
        return of_linear("head", self.head) | {"head/shift": self.shift}


class PlainFedDBE(PlainFedAvg):
    """The common mean is that of the clients' last running means in a training of everything but the shift."""

    private = ("shift",)

    def first_reports(self, rounds, key):
        self.common, options = 0, self.training
        for i, size in enumerate(self.sizes):
            network, mean = copy.deepcopy(rounds.server).train(), 0
            trained = [p for name, p in network.named_parameters() if name != "shift"]
            optimizer = sgd(trained, options.learning_rate, options)
            epochs = itertools.islice(rounds.epochs(jax.random.fold_in(key, i), i, size), options.epochs)
            for rows, _ in itertools.chain(*epochs):
                features, logits = network(rounds.images[rows])
                mean = 0.6 * mean + 0.4 * features.detach().mean(0)
                optimizer.zero_grad()
                cross_entropy(logits, rounds.labels[rows]).backward()
                optimizer.step()
            self.common = self.common + size / self.sizes.sum() * mean

    def start_client(self, client):
        self.mean = torch.zeros_like(self.common)

    def penalty(self, step):
        self.mean = 0.6 * self.mean.detach() + 0.4 * step.features.mean(0)
        return 30.0 * ((self.mean - self.common) ** 2).mean() / 2

    def check(self, found, rounds):
        common, is_known = found.state.server.shared["feddbe"]
        assert_close(common, self.common.numpy(), 1e-12)
        assert is_known
