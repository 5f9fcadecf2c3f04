"""Methods whose server makes something for each client of the uploads of all."""

import copy
import itertools
import math

import jax
import numpy as np
import torch
from conftest import assert_close

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import Stream, method_key
from fedjax_collapse.core.records import Variables
from reference.networks import stacked, state, vector
from reference.personal_receive import PlainPrototypes
from reference.rounds import BODY, EVERYTHING, HEAD, TOLERANCE, PlainFedAvg, cross_entropy


class PlainFedAMP(PlainFedAvg):
    """Flat mixtures of the models that the server has."""

    private = EVERYTHING

    def __init__(self, strength, alpha, sigma):
        self.strength, self.alpha, self.sigma, self.models, self.forgotten = strength, alpha, sigma, {}, set()

    def start(self):
        if self.round == 0:
            self.mixtures = [vector(self.received.parameters()) for _ in self.sizes]

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
        expected = stacked([rounds.params(mixture) for mixture in self.mixtures])
        assert_close(memory.mixture, masks.by_path(Variables(expected, {})), TOLERANCE)


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


class PlainFedPAC(PlainPrototypes):
    """Prototypes by class, and the heads of the clients that are heard."""

    private, phases = HEAD, [(HEAD, 1), (BODY, 2)]

    def __init__(self, strength, by):
        super().__init__("fedpac", strength, by == "examples")
        self.statistics = {}

    def start_client(self, client):
        features = copy.deepcopy(client.network).eval()(client.images)[0].detach()
        size, of_class = len(features), [features[client.labels == c] for c in range(4)]
        shares = [len(rows) / size for rows in of_class]
        means = [rows.mean(0) if len(rows) else 0 * features[0] for rows in of_class]
        h = torch.stack([p * mean for p, mean in zip(shares, means, strict=True)])
        second = sum(p * (rows**2).sum(1).mean() for p, rows in zip(shares, of_class, strict=True) if len(rows))
        spread = sum(p**2 * (mean**2).sum() for p, mean in zip(shares, means, strict=True))
        self.statistics[client.id] = (second - spread) / size, h

    def finish(self, client):
        return self.means(client.network(client.images)[0].detach(), client.labels)

    def aggregate(self, received, clients):
        self.aggregate_prototypes(clients)
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
        super().check(found, rounds)
        memory = found.state.clients.memory["fedpac"]
        for i, (variance, h) in self.statistics.items():
            assert_close((memory.variance[i], memory.means[i]), (float(variance), h.numpy()), TOLERANCE)


class PlainFedFomo(PlainFedAvg):
    """Networks that the server has, and the ones of others that it offers to each client; ``key``: of the run."""

    private = EVERYTHING

    def __init__(self, models, explore, slope, key, of_pfllib=False):
        self.models, self.explore, self.slope, self.of_pfllib = models, explore, slope, of_pfllib
        self.key, self.known, self.begun, self.mixtures, self.explored = jax.random.key(key), {}, {}, 0, 0

    def held_out(self, size):
        return int(0.3 * size)

    def start(self):
        if self.round == 0:
            count = len(self.sizes)
            self.offers, self.scores = [{} for _ in range(count)], np.zeros((count, count))

    def start_client(self, client):
        own = base = client.network
        images, labels = client.held_out
        if self.of_pfllib:
            base = self.begun.get(client.id, self.received)

        def loss(network):
            logits = copy.deepcopy(network).eval()(images)[1].detach()
            return float(cross_entropy(logits, labels))

        self.gains, best, flat = {}, {}, vector(base.parameters())
        for j, other in self.offers[client.id].items():
            distance = float(torch.linalg.norm(vector(other.parameters()) - flat))
            self.gains[j] = (loss(base) - loss(other)) / (distance + 1e-5)
            if self.gains[j] > 0:
                best[j] = other
        if best:
            total = sum(self.gains[j] for j in best)
            mixed = {
                name: start + sum(self.gains[j] / total * (state(best[j])[name] - start) for j in best)
                for name, start in state(base).items()
            }
            own.load_state_dict(mixed, strict=False)
            self.mixtures += 1
        self.begun[client.id] = copy.deepcopy(own)

    def finish(self, client):
        self.known.pop(client.id, None)
        return self.gains

    def aggregate(self, received, clients):
        count = len(self.sizes)
        for client in clients:
            self.known[client.id] = copy.deepcopy(client.network)
            for j, gain in client.report.items():
                self.scores[client.id, j] += gain
        key = method_key(Stream.DISPATCH.key(jax.random.fold_in(self.key, self.round)), "fedfomo")
        epsilon = self.explore - self.slope * (self.round + 1)
        for k, own_key in enumerate(jax.random.split(key, count)):
            keys = jax.random.split(own_key, 3)
            explores = np.array(jax.random.uniform(keys[0], self.models)) < epsilon
            chance, ties = (np.array(jax.random.uniform(each, (count,))) for each in keys[1:])
            score = self.scores[k] + self.of_pfllib * np.eye(count)[k]
            left = {j for j in self.known if j != k or self.of_pfllib}
            self.offers[k] = {}
            for explored in explores[: len(left)]:
                self.explored += explored
                best = max(left, key=lambda j: chance[j] if explored else (score[j], ties[j]))
                left.remove(best)
                self.offers[k][best] = self.known[best]
        return received

    def check(self, found, rounds):
        assert self.mixtures > 1 and (self.explored > 1) == (self.explore > 0)
        memory, count = found.state.clients.memory["fedfomo"], len(self.sizes)
        assert np.flatnonzero(memory.is_known).tolist() == sorted(self.known)
        assert_close(memory.scores, self.scores, TOLERANCE)
        for k, offers in enumerate(self.offers):
            assert memory.ids[k].tolist() == [*offers, *[count] * (self.models - len(offers))]
            for slot, other in enumerate(offers.values()):
                expected = masks.by_path(other.dump())
                assert_close({path: leaf[k, slot] for path, leaf in memory.models.items()}, expected, TOLERANCE)
