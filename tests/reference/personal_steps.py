"""Methods whose clients step with several models at once: pFedMe."""

import copy

import torch
from conftest import assert_close
from torch.nn.utils import vector_to_parameters

from reference.networks import load_params, set_gradient, stacked, statistics, vector
from reference.rounds import TOLERANCE, PlainFedAvg


class PlainSteps(PlainFedAvg):
    """Passes at other params than those that are trained; the first moves running statistics."""

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.own = {}  # by client, a network as stored

    def start(self, round, server):
        if round == 0:
            self.initial = copy.deepcopy(server)

    def gradient_at(self, client, params, loss, moves_statistics=False):
        """Flat, of ``loss()`` with the flat ``params`` in the client's network, which is then as before."""
        network, before = client.network, vector(client.network.parameters()).clone()
        buffers = [b.clone() for b in statistics(network)]
        vector_to_parameters(params, network.parameters())
        found = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(), list(network.parameters()))])
        vector_to_parameters(before, network.parameters())
        if not moves_statistics:
            for b, old in zip(statistics(network), buffers, strict=True):
                b.copy_(old)
        return found


class PlainPFedMe(PlainSteps):
    """With the steps' rate, decay and number; ``is_kept``: theta goes on from batch to batch."""

    def __init__(self, strength, steps, rate, beta, decay, is_kept):
        self.strength, self.steps, self.rate, self.beta = strength, steps, rate, beta
        self.inner_decay, self.is_kept = decay, is_kept

    def start_client(self, client):
        client.own = client.received.clone()

    def backward(self, client, loss):
        w = vector(client.network.parameters()).clone()
        if not self.is_kept:
            client.own = w.clone()
        for i in range(self.steps):
            slope = self.gradient_at(client, client.own, loss, moves_statistics=i == 0)
            slope = slope + self.strength * (client.own - w) + self.inner_decay * client.own
            client.own = client.own - self.rate * slope
        set_gradient(client.network, self.strength * (w - client.own))

    def finish(self, client):
        self.own[client.id] = load_params(copy.deepcopy(client.network).eval(), client.own)

    def aggregate(self, received, clients):
        return (1 - self.beta) * received + self.beta * self.average(clients)

    def check(self, found, rounds):
        models = [self.own.get(i, self.initial).dump() for i in range(len(self.sizes))]
        assert_close(found.state.clients.memory["pfedme"], stacked(models), TOLERANCE)
