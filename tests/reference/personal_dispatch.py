"""Methods whose server makes something for each client of the uploads of all."""

import math

import jax
import numpy as np
import torch
from conftest import assert_close

from reference.networks import vector
from reference.rounds import EVERYTHING, PlainFedAvg

TOLERANCE = 1e-10


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


class PlainFedAMP(PlainFedAvg):
    """Flat mixtures of the models that the server has."""

    private = EVERYTHING

    def __init__(self, strength, alpha, sigma):
        self.strength, self.alpha, self.sigma, self.models, self.forgotten = strength, alpha, sigma, {}, set()

    def start(self, round, server):
        if round == 0:
            self.mixtures = [vector(server.parameters()).detach().clone() for _ in self.sizes]

    def start_client(self, client):
        self.mixture = self.mixtures[client.id]

    def penalty(self, step):
        gap = torch.cat([p.flatten() for p in step.network.parameters()]) - self.mixture
        return self.strength / (2 * self.alpha) * gap @ gap

    def finish(self, client):
        if self.models.pop(client.id, None) is not None:
            self.forgotten.add(client.id)

    def aggregate(self, received, clients):
        for client in clients:
            self.forgotten.discard(client.id)
            self.models[client.id] = vector(client.network.parameters()).detach().clone()
        for k, own in self.models.items():
            weights = {
                j: self.alpha * math.exp(-float(((own - other) ** 2).sum()) / self.sigma) / self.sigma
                for j, other in self.models.items()
                if j != k
            }
            others = sum(weight * self.models[j] for j, weight in weights.items())
            self.mixtures[k] = (1 - sum(weights.values())) * own + others
        return received

    def check(self, found, rounds):
        assert self.forgotten  # was known, trained again, and was not heard
        memory = found.state.clients.memory["fedamp"]
        assert np.flatnonzero(memory.is_known).tolist() == sorted(self.models)
        assert_close(memory.mixture, stacked([rounds.params(mixture) for mixture in self.mixtures]), TOLERANCE)
