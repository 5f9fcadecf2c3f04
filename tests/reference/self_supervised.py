"""Self-supervised rounds in plain PyTorch: an encoder, a projector and a predictor, and two views of every example."""

import copy

import jax
import numpy as np
import torch
from torch.nn.functional import cosine_similarity, log_softmax, normalize

from fedjax_collapse.core.randomness import Stream, method_key
from reference.networks import TorchNetwork, of_linear
from reference.rounds import PlainFedAvg, Rounds


def brighter(image, key):
    """The augmentation: another brightness for each view."""
    return image * jax.random.uniform(key, minval=0.3)


class TorchSiamese(TorchNetwork):
    """That of ``nn.MLP(hidden=(6,))`` with the head ``Siamese``; layers in the library's order."""

    place = "head/"

    def __init__(self, has_predictor):
        super().__init__()
        widths = [(128, 6), (6, 7), (7, 6), *[(6, 7), (7, 6)] * has_predictor]
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*each) for each in widths])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(7) for _ in range(1 + has_predictor)])

    @classmethod
    def of(cls, variables):
        return cls("Dense_3" in variables.params["head"]).load(variables)

    def forward(self, images):
        first, *others = self.layers
        features = torch.relu(first(images.permute(0, 2, 3, 1).flatten(1)))
        outputs = [features]
        for i, norm in enumerate(self.norms):
            outputs.append(others[2 * i + 1](torch.relu(norm(others[2 * i](outputs[-1])))))
        features, h, *p = outputs
        return features, h, *(p or [h])

    def leaves(self):
        first, *others = self.layers
        found = of_linear("Dense_0", first)
        for i, norm in enumerate(self.norms):
            found |= {f"head/BatchNorm_{i}/scale": norm.weight, f"head/BatchNorm_{i}/bias": norm.bias}
        for i, layer in enumerate(others):
            found |= of_linear(f"head/Dense_{i}", layer)
        return found


class SiameseRounds(Rounds):
    """Rounds whose steps see two views of their examples."""

    def epochs(self, key, i, size):
        for epoch, steps in enumerate(super().epochs(key, i, size)):
            _, of_epoch = jax.random.split(jax.random.fold_in(key, epoch))
            yield [(rows, (Stream.AUGMENTATION.key(of_epoch), of_step)) for rows, of_step in steps]

    def view(self, rows, key):
        factors = [jax.random.uniform(jax.random.fold_in(key, row), minval=0.3) for row in rows]
        pixels = (64 * self.images[rows] + 100) * torch.tensor(np.array(factors))[:, None, None, None]
        return (pixels - 100) / 64

    def step(self, client, optimizer, rows, keys):
        first, key = keys
        views = [self.view(rows, of_view) for of_view in (first, jax.random.fold_in(first, 2**30 + 1))]
        client.network.zero_grad()
        outputs = [client.network(view) for view in views]
        self.method.loss_of(client, outputs, views, key).backward()
        for p in client.network.parameters():  # those without a gradient decay, too
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        optimizer.step()
        client.steps += 1
        self.method.after_step(client)


class PlainSimSiam(PlainFedAvg):
    def __init__(self, is_stopped=True):
        self.is_stopped = is_stopped

    def loss_of(self, client, outputs, views, key):
        (_, h_1, p_1), (_, h_2, p_2) = outputs
        if self.is_stopped:
            h_1, h_2 = h_1.detach(), h_2.detach()
        return -(cosine_similarity(p_1, h_2).mean() + cosine_similarity(p_2, h_1).mean()) / 2

    def after_step(self, client):
        pass


class PlainBYOL(PlainSimSiam):
    """With FedEMA and FedU2, if it has a ``tau`` and a ``strength``; ``rate``: of FedU2's step of the server."""

    def __init__(self, momentum, tau=None, strength=0.0, rate=None):
        self.momentum, self.tau, self.strength, self.rate = momentum, tau, strength, rate
        self.targets, self.last, self.scales = {}, {}, {}

    def start_client(self, client):
        self.target = self.targets.setdefault(client.id, copy.deepcopy(client.network))
        round, last = self.last.get(client.id, (-2, None))
        if self.tau is None or round != self.round - 1:
            return
        params = list(client.network.parameters())
        matrices = [(a - b).norm() for a, b in zip(params, last, strict=True) if a.ndim > 1]
        apart = sum(matrices) / len(matrices)
        scale = self.scales.setdefault(client.id, self.tau / apart)
        mu = min(scale * apart, 1)
        with torch.no_grad():
            for own, old in zip(params, last, strict=True):
                own.copy_(mu * old + (1 - mu) * own)

    def loss_of(self, client, outputs, views, key):
        with torch.no_grad():
            targets = [self.target.train()(view)[1] for view in views]
        (_, h_1, p_1), (_, h_2, p_2) = outputs
        loss = 4 - 2 * cosine_similarity(p_1, targets[1]).mean() - 2 * cosine_similarity(p_2, targets[0]).mean()
        if self.strength:
            keys = jax.random.split(method_key(key, "fedu2"), 2)
            loss = loss + self.strength * sum(self.distance(*each) for each in zip((h_1, h_2), keys, strict=True))
        return loss

    def distance(self, h, key):
        """FedU2's, of six tangent points as the library draws them, times rows / 6."""
        of_points, of_tangents, of_directions = jax.random.split(key, 3)
        shape = self.training.batch_size, h.shape[1]  # padding included
        points, tangents, directions = (
            torch.tensor(np.array(jax.random.normal(*each)))
            for each in ((of_points, shape), (of_tangents, (6, shape[1])), (of_directions, (6, shape[1])))
        )
        h, points, total = normalize(h), normalize(points)[: len(h)], 0.0
        for t in normalize(tangents):

            def on_directions(y, t=t):
                inner = (y @ t)[:, None]
                v = y - t - ((y - t) @ t)[:, None] * t
                return (v * torch.arccos(inner) / v.norm(dim=1, keepdim=True) @ directions.T).sort(0).values

            total = total + ((on_directions(h) - on_directions(points)) ** 2).mean()
        return total / 6 * len(h) / 6

    def after_step(self, client):
        with torch.no_grad():
            for target, own in zip(self.target.parameters(), client.network.parameters(), strict=True):
                target.copy_(self.momentum * target + (1 - self.momentum) * own)

    def finish(self, client):
        self.last[client.id] = self.round, [p.detach().clone() for p in client.network.parameters()]

    def average(self, clients):
        if self.rate is None:
            return super().average(clients)
        received = clients[0].received
        directions = [2 * (received - c.params) / (received - c.params).norm() for c in clients]
        gram = torch.stack(directions) @ torch.stack(directions).T
        weights = torch.full((len(clients),), 1 / len(clients))
        for _ in range(20000):  # exponentiated gradient
            weights = weights * torch.exp(-0.5 * (gram @ weights))
            weights = weights / weights.sum()
        return received - self.rate * sum(w * d for w, d in zip(weights, directions, strict=True))


class PlainSSD(PlainSimSiam):
    def __init__(self, strength, scale, distillation, exponent, num_clients):
        self.options = strength, scale, distillation, exponent, num_clients

    def loss_of(self, client, outputs, views, key):
        strength, scale, distillation, exponent, num_clients = self.options
        z = [normalize(h) for _, h, _ in outputs]
        loss = ((z[0] - z[1]) ** 2).sum(1).mean()
        size = z[0].shape[1] // num_clients
        factors = torch.ones(z[0].shape[1])
        factors[size * client.id : size * (client.id + 1)] = scale
        for rows, (features, _, _) in zip(z, outputs, strict=True):
            pairs = torch.pdist(rows) ** 2
            loss = loss + (torch.log(torch.exp(-exponent * pairs).mean()) / 2 if len(pairs) else 0)
            loss = loss + strength / 2 * ((rows - (rows * factors).detach()) ** 2).sum(1).mean()
            log_p, log_q = log_softmax(features, 1), log_softmax(rows.detach(), 1)
            loss = loss + distillation / 2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()
        return loss
