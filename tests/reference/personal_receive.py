"""FedProto, and FedALA, whose clients make a model of their own of the one that they receive."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import torch
from conftest import assert_close

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import method_key
from reference.rounds import EVERYTHING, TOLERANCE, PlainFedAvg, cross_entropy, is_in


class PlainPrototypes(PlainFedAvg):
    """Means of the clients' means of features by class, of those that report the class; ``name`` of the method."""

    def __init__(self, name, strength, by_examples):
        self.name, self.strength, self.by_examples, self.prototypes = name, strength, by_examples, {}

    def penalty(self, step):
        rows = zip(step.features, step.labels.tolist(), strict=True)
        squares = [((z - self.prototypes[label]) ** 2).sum() for z, label in rows if label in self.prototypes]
        return self.strength * sum(squares) / step.features.numel()

    def means(self, features, labels):
        return {c: features[labels == c].mean(0) for c in labels.unique().tolist()}

    def aggregate_prototypes(self, clients):
        for label in range(4):
            has = [client for client in clients if label in client.report]
            if has:
                sizes = [int((client.labels == label).sum()) if self.by_examples else 1 for client in has]
                total = sum(size * client.report[label] for size, client in zip(sizes, has, strict=True))
                self.prototypes[label] = total / sum(sizes)

    def check(self, found, rounds):
        means, valid = found.state.server.shared[self.name]
        assert np.flatnonzero(valid).tolist() == sorted(self.prototypes)
        assert_close(means[valid], np.stack([self.prototypes[c].numpy() for c in sorted(self.prototypes)]), TOLERANCE)


class PlainFedProto(PlainPrototypes):
    """``epochs``: of how many last ones a client collects features, 0 after training."""

    private = EVERYTHING

    def __init__(self, epochs, by_examples):
        super().__init__("fedproto", 0.6, by_examples)
        self.epochs = epochs

    def start_client(self, client):
        self.seen = []

    def penalty(self, step):
        self.seen.append((step.features.detach(), step.labels))
        return super().penalty(step)

    def finish(self, client):
        if self.epochs == 0:
            self.seen = [(client.network(client.images)[0].detach(), client.labels)]
        kept = -(-len(client.labels) // self.training.batch_size) * self.epochs
        features, labels = map(torch.cat, zip(*self.seen[-kept:], strict=True))
        return self.means(features, labels)

    def aggregate(self, received, clients):
        self.prototypes = {}
        self.aggregate_prototypes(clients)
        return received


class PlainFedALA(PlainFedAvg):
    """Networks whose params are the clients' last ones, and those whose params are the weights."""

    def __init__(self, part, share, threshold):
        self.part, self.share, self.threshold, self.epochs = part, share, threshold, []

    def start(self):
        if self.round == 0:
            ones = copy.deepcopy(self.received)
            for p in ones.parameters():
                p.data.fill_(1)
            self.last, self.mixing = [[copy.deepcopy(of) for _ in self.sizes] for of in (self.received, ones)]
            self.settled = set()

    def mixed(self, network):
        return [p for name, p in network.named_parameters() if is_in(name, self.part)]

    def start_client(self, client):
        network = copy.deepcopy(client.network)  # its running statistics are of nobody
        theta, g = self.mixed(network), [p.detach().clone() for p in self.mixed(client.network)]
        own, weights = (self.mixed(of[client.id]) for of in (self.last, self.mixing))
        if all(torch.equal(a, b) for a, b in zip(own, g, strict=True)):
            return
        size = int(self.share * len(client.labels))
        key = method_key(client.key, "fedala")
        first = int(jax.random.randint(key, (), 0, len(client.labels) - size + 1, jnp.int32))
        self.blend(theta, own, g, weights)
        losses = []
        while True:
            window = slice(first, first + size)
            for images, labels in zip(client.images[window].split(8), client.labels[window].split(8), strict=True):
                network.zero_grad()
                loss = cross_entropy(network(images)[1], labels)
                loss.backward()
                for a, b, t, w in zip(own, g, theta, weights, strict=True):
                    w.data = (w.data - 1.5 * t.grad * (b - a.data)).clamp(0, 1)
                self.blend(theta, own, g, weights)
            losses.append(loss.item())
            if client.id in self.settled or (len(losses) > 10 and np.std(losses[-10:]) < self.threshold):
                break
        self.settled.add(client.id)
        self.epochs.append(len(losses))
        for p, t in zip(self.mixed(client.network), theta, strict=True):
            p.data = t.data.clone()

    def blend(self, theta, own, g, weights):
        for a, b, t, w in zip(own, g, theta, weights, strict=True):
            t.data = a.data + (b - a.data) * w.data

    def finish(self, client):
        self.last[client.id] = client.network

    def check(self, found, rounds):
        assert min(self.epochs) == 1 and max(self.epochs) > 11  # later rounds, and first ones that take their time
        memory = found.state.clients.memory["fedala"]
        assert np.flatnonzero(memory.has_settled).tolist() == sorted(self.settled)
        for stored, networks in ((memory.last, self.last), (memory.weights, self.mixing)):
            for i, network in enumerate(networks):
                expected = masks.by_path(network.dump().params)
                for path, leaf in stored.items():
                    assert_close(leaf[i], expected[path], TOLERANCE)
        assert any((leaf < 1).any() for leaf in memory.weights.values())
