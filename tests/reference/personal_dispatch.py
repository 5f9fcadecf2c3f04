"""Methods whose server makes something for each client of the uploads of all."""

import copy
import itertools
import math

import jax
import numpy as np
import torch
from conftest import assert_close

from reference.networks import vector
from reference.rounds import BODY, EVERYTHING, HEAD, PlainFedAvg

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


def combination(matrix):
    """The weights of sum 1 with the smallest ``a' matrix a``: the best of all supports."""
    best, found = math.inf, None
    for count in range(1, len(matrix) + 1):
        for support in map(list, itertools.combinations(range(len(matrix)), count)):
            values = np.linalg.solve(matrix[np.ix_(support, support)], np.ones(count))
            weights = np.zeros(len(matrix))
            weights[support] = values / values.sum()
            if weights.min() >= 0 and weights @ matrix @ weights < best:
                best, found = weights @ matrix @ weights, weights
    return found


class PlainFedPAC(PlainFedAvg):
    """Prototypes by class, and the heads of the clients that are heard."""

    private, phases = HEAD, [(HEAD, 1), (BODY, 2)]

    def __init__(self, strength, by):
        self.strength, self.by, self.prototypes, self.statistics = strength, by, {}, {}

    def start_client(self, client):
        features = copy.deepcopy(client.network).eval()(client.images)[0].detach()
        size, of_class = len(features), [features[client.labels == c] for c in range(4)]
        shares = [len(rows) / size for rows in of_class]
        means = [rows.mean(0) if len(rows) else 0 * features[0] for rows in of_class]
        h = torch.stack([p * mean for p, mean in zip(shares, means, strict=True)])
        second = sum(p * (rows**2).sum(1).mean() for p, rows in zip(shares, of_class, strict=True) if len(rows))
        spread = sum(p**2 * (mean**2).sum() for p, mean in zip(shares, means, strict=True))
        self.statistics[client.id] = (second - spread) / size, h

    def penalty(self, step):
        rows = zip(step.features, step.labels.tolist(), strict=True)
        squares = [((z - self.prototypes[label]) ** 2).sum() for z, label in rows if label in self.prototypes]
        return self.strength * sum(squares) / step.features.numel()

    def finish(self, client):
        features = client.network(client.images)[0].detach()
        return {c: features[client.labels == c].mean(0) for c in client.labels.unique().tolist()}

    def aggregate(self, received, clients):
        for label in range(4):
            has = [client for client in clients if label in client.report]
            if has:
                sizes = [int((c.labels == label).sum()) if self.by == "examples" else 1 for c in has]
                total = sum(size * client.report[label] for size, client in zip(sizes, has, strict=True))
                self.prototypes[label] = total / sum(sizes)
        heads = [[p.detach().clone() for p in client.network.head.parameters()] for client in clients]
        variances, h = zip(*[self.statistics[client.id] for client in clients], strict=True)
        for i, client in enumerate(clients):
            gaps = [(h[i] - other).flatten() for other in h]
            matrix = np.array([[float(a @ b) for a in gaps] for b in gaps]) + np.diag([float(v) for v in variances])
            weights = combination(matrix)
            weights[weights < 1e-3] = 0
            for p, *own in zip(client.network.head.parameters(), *heads, strict=True):
                p.data = sum(w * each for w, each in zip(weights / weights.sum(), own, strict=True))
        return self.average(clients)

    def check(self, found, rounds):
        means, valid = found.state.server.shared["fedpac"]
        assert np.flatnonzero(valid).tolist() == sorted(self.prototypes)
        assert_close(means[valid], np.stack([self.prototypes[c].numpy() for c in sorted(self.prototypes)]), TOLERANCE)
        memory = found.state.clients.memory["fedpac"]
        for i, (variance, h) in self.statistics.items():
            assert_close((memory.variance[i], memory.means[i]), (float(variance), h.numpy()), TOLERANCE)
