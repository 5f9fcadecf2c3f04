"""Methods whose clients use models of their own."""

import copy

import torch
from conftest import assert_close

from reference.networks import stacked
from reference.rounds import TOLERANCE, PlainFedAvg


class PlainDitto(PlainFedAvg):
    """A second network of each client, which sees the batches of the first."""

    averages_alike = True

    def __init__(self, strength):
        self.strength = strength

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.own = {}

    def start_client(self, client):
        if client.id not in self.own:
            self.own[client.id] = copy.deepcopy(self.initial)
        client.second = self.own[client.id].train()
        client.second_optimizer = torch.optim.SGD(
            client.second.parameters(), client.learning_rate, self.training.momentum,
            weight_decay=self.training.weight_decay,
        )  # fmt: skip

    def start(self, round, server):
        if round == 0:
            self.initial = copy.deepcopy(server)

    def backward(self, client, loss):
        loss().backward()
        client.second.zero_grad()
        _, logits = client.second(client.batch.images)
        own = torch.nn.utils.parameters_to_vector(client.second.parameters())
        distance = ((own - client.received) ** 2).sum()
        task = torch.nn.functional.cross_entropy(logits, client.batch.labels)
        (task + self.strength / 2 * distance).backward()
        client.second_optimizer.step()

    def check(self, found, rounds):
        models = [self.own.get(i, self.initial).eval().dump() for i in range(len(self.sizes))]
        assert_close(found.state.clients.memory["ditto"], stacked(models), TOLERANCE)
