"""Attacks on uploads, robust rules, and noise for all uploads; the library's normal numbers are given."""

import jax
import numpy as np
import torch
from conftest import assert_close

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import Stream, method_key
from reference.networks import TorchCNN, vector
from reference.rounds import NORMS, PlainFedAvg, cross_entropy


class PlainMedianUnderALIE(PlainFedAvg):
    """The last client sends the mean of the others minus 1.5 deviations; the server takes the median."""

    def aggregate(self, received, clients):
        updates = {client.id: (client.params - received).numpy() for client in clients}
        honest = np.stack([update for i, update in updates.items() if i != 4])
        forged = honest.mean(axis=0) - 1.5 * honest.std(axis=0, ddof=1)
        sent = [forged if i == 4 else update for i, update in updates.items()]
        return received + torch.from_numpy(np.median(sent, axis=0))


class PlainMultiKrumUnderFlips(PlainFedAvg):
    """The last two clients train on labels 3 - y; the server averages the two updates that are closest to others."""

    def start_client(self, client):
        self.is_malicious = client.id in (3, 4)

    def loss(self, step):
        labels = 3 - step.labels if self.is_malicious else step.labels
        return cross_entropy(step.logits, labels)

    def aggregate(self, received, clients):
        clients = sorted(clients, key=lambda client: client.id)
        updates = np.stack([(client.params - received).numpy() for client in clients])
        distances = np.sum((updates[:, None] - updates[None]) ** 2, axis=2)
        scores = [min(np.delete(row, i)) for i, row in enumerate(distances)]
        return received + torch.from_numpy(updates[np.argsort(scores, kind="stable")[:2]].mean(axis=0))


class PlainDPFedAvg(PlainFedAvg):
    """Clips what is not private, adds noise to the sum, and divides by all ``clients``; the clip follows a quantile."""

    private = NORMS

    def __init__(self, clip, noise, quantile, rate, bit_noise, clients, key):
        self.first = clip, jax.random.key(key)
        self.noise = (noise**-2 - (2 * bit_noise) ** -2) ** -0.5
        self.quantile, self.rate, self.bit_noise, self.clients = quantile, rate, bit_noise, clients

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.clip, self.key = self.first

    def start(self):
        variables = self.received.dump()
        key = method_key(Stream.NOISE.key(jax.random.fold_in(self.key, self.round)), "dp_fedavg")
        of_sum, of_bits = jax.random.split(key)
        params = masks.by_path(variables.params)
        sent = [path for path in params if "BatchNorm" not in path]
        drawn = zip(sent, jax.random.split(of_sum, len(sent)), strict=True)
        normals = {path: jax.random.normal(key, params[path].shape) for path, key in drawn}
        leaves = [normals.get(path, 0 * leaf) for path, leaf in params.items()]
        filled = jax.tree.unflatten(jax.tree.structure(variables.params), leaves)
        self.normals = vector(TorchCNN.of(variables._replace(params=filled)).parameters())
        self.bits = float(jax.random.normal(of_bits))

    def aggregate(self, received, clients):
        updates = [client.params - received for client in clients]
        norms = [float(torch.linalg.vector_norm(update)) for update in updates]
        clipped = [update * min(1, self.clip / norm) for update, norm in zip(updates, norms, strict=True)]
        noisy = sum(clipped) + self.noise * self.clip * self.normals
        bits = sum((norm <= self.clip) - 0.5 for norm in norms)
        within = (bits + self.bit_noise * self.bits) / self.clients + 0.5
        self.clip *= float(torch.exp(torch.tensor(-self.rate * (within - self.quantile))))
        return received + noisy / self.clients

    def check(self, found, rounds):
        assert_close(found.state.server.shared["dp_fedavg"], self.clip, 1e-10)
        assert self.clip != self.first[0]
