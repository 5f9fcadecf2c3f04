"""Low-rank adapters in PyTorch, as matrices A [r, in] and B [out, r], and the servers' rules for them."""

import collections
import copy
from types import SimpleNamespace

import jax
import numpy as np
import scipy.linalg
import torch

from fedjax_collapse.core.randomness import method_key
from fedjax_collapse.nn.adapters import LoRA
from reference.networks import TorchNetwork, load_params, vector
from reference.rounds import PlainFedAvg

ADAPTERS = LoRA(3, 4.0, layers=("all",))
RANKS = (1, 3, 2)
LEAVES = {"kernel": "weight", "bias": "bias", "lora_a": "lora_a", "lora_b": "lora_b", "lora_scale": "scale"}


class Adapted(torch.nn.Linear):
    """``W x + B s A x``; ``scale`` [r] is s, 0 for entries that a client does not have."""

    def __init__(self, inputs, outputs, rank):
        super().__init__(inputs, outputs)
        self.lora_a = torch.nn.Parameter(torch.zeros(rank, inputs))
        self.lora_b = torch.nn.Parameter(torch.zeros(outputs, rank))
        self.register_buffer("scale", torch.zeros(rank))

    def forward(self, x):
        return super().forward(x) + (x @ self.lora_a.T * self.scale) @ self.lora_b.T

    def product(self, entries=slice(None)):
        return (self.lora_b * self.scale)[:, entries] @ self.lora_a[entries]


class TorchMLP(TorchNetwork):
    """The network of ``nn.MLP(4, hidden=(6, 5))``, whose hidden layers have adapters."""

    norms = ()

    def __init__(self, rank):
        super().__init__()
        self.layers = torch.nn.ModuleList([Adapted(128, 6, rank), Adapted(6, 5, rank)])
        self.head = torch.nn.Linear(5, 4)

    @classmethod
    def of(cls, variables):
        return cls(ADAPTERS.rank).load(variables)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).flatten(1)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x, self.head(x)

    def leaves(self):
        found = {}
        for i, layer in enumerate((*self.layers, self.head)):
            for name, own in LEAVES.items():
                if hasattr(layer, own):
                    found[f"Dense_{i}/{name}"] = getattr(layer, own).t()
        return found


class PlainLoRA(PlainFedAvg):
    """Adapters and head are trained and averaged. A server's ``rule`` changes a layer, in which the means are."""

    trained = ("lora", "head")

    def __init__(self, ranks=()):
        self.ranks = ranks

    def alone(self):
        return PlainLoRA()

    @property
    def phases(self):
        return [(self.trained, self.training.epochs)]

    def rank_of(self, id):
        return self.ranks[id % len(self.ranks)] if self.ranks else ADAPTERS.rank

    @torch.no_grad()
    def start_client(self, client):
        client.rank = self.rank_of(client.id)
        for layer in client.network.layers:
            own = ADAPTERS.alpha / client.rank
            layer.lora_b *= layer.scale / own
            layer.scale[:] = own * (torch.arange(ADAPTERS.rank) < client.rank)

    @torch.no_grad()
    def aggregate(self, received, clients):
        new = load_params(copy.deepcopy(self.received), self.average(clients))
        for i, layer in enumerate(new.layers):
            own = [SimpleNamespace(rank=c.rank, weight=c.weight, layer=c.network.layers[i]) for c in clients]
            self.rule(layer, self.received.layers[i], own)
        return vector(new.parameters())

    def rule(self, layer, old, clients):
        pass


def mean_product(clients):
    return sum(c.weight * c.layer.product() for c in clients)


def set_factors(layer, matrix, balanced=False):
    """The largest singular directions; of each of B the largest entry is positive."""
    u, s, v = (torch.tensor(part) for part in scipy.linalg.svd(matrix.numpy(), full_matrices=False))
    for j in range(len(layer.scale)):
        sign, root = torch.sign(u[u[:, j].abs().argmax(), j]), s[j] ** 0.5 if balanced else 1
        layer.lora_a[j], layer.lora_b[:, j] = sign * root * v[j], sign * s[j] / root * u[:, j] / layer.scale[j]


class PlainFFALoRA(PlainLoRA):
    trained = ("lora_b", "head")


class PlainFedSALoRA(PlainLoRA):
    private = ("lora_b", "head")


class PlainRoLoRA(PlainLoRA):
    @property
    def trained(self):
        return ("lora_a" if self.round % 2 else "lora_b"), "head"


class PlainFedSVD(PlainFFALoRA):
    def rule(self, layer, old, clients):
        set_factors(layer, layer.product())


class PlainFedRotLoRA(PlainLoRA):
    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def rule(self, layer, old, clients):
        if self.round == 0:
            return
        layer.lora_a[:], layer.lora_b[:] = 0, 0
        for c in clients:
            a, b = c.layer.lora_a.numpy(), c.layer.lora_b.numpy()
            pair = (a.T, old.lora_a.numpy().T) if self.round % 2 else (b, old.lora_b.numpy())
            turn, _ = scipy.linalg.orthogonal_procrustes(*pair)
            if self.strength < 1:
                turn, _ = scipy.linalg.polar((1 - self.strength) * np.eye(len(turn)) + self.strength * turn)
            layer.lora_a += c.weight * torch.tensor(turn.T @ a)
            layer.lora_b += c.weight * torch.tensor(b @ turn)


class PlainFedExLoRA(PlainLoRA):
    def rule(self, layer, old, clients):
        layer.weight += mean_product(clients) - layer.product()


class PlainFlexLoRA(PlainLoRA):
    def rule(self, layer, old, clients):
        set_factors(layer, mean_product(clients))


class PlainFLoRA(PlainLoRA):
    keeps = ("lora",)  # of the server

    @torch.no_grad()
    def start_client(self, client):
        super().start_client(client)
        layers = client.network.layers
        for layer, key in zip(layers, jax.random.split(method_key(client.key, "flora"), len(layers)), strict=True):
            bound = layer.in_features**-0.5
            drawn = jax.random.uniform(key, layer.lora_a.T.shape, float, -bound, bound)
            layer.lora_a[:], layer.lora_b[:] = torch.tensor(np.array(drawn)).T, 0

    def rule(self, layer, old, clients):
        layer.weight += mean_product(clients)
        layer.lora_a[:], layer.lora_b[:] = old.lora_a, old.lora_b


class PlainRaFLoRA(PlainLoRA):
    def rule(self, layer, old, clients):
        total, first = 0, 0
        for level in sorted(set(self.ranks)):
            having = [c for c in clients if c.rank >= level]
            entries, weight = slice(first, level), sum(c.weight for c in having)
            mean = sum(c.weight / weight * c.layer.product(entries) for c in having)
            total, first = total + (mean if having else old.product(entries)), level
        set_factors(layer, total, balanced=True)


class PlainRBLoRA(PlainLoRA):
    """What the clients' share of a rank divides: A and B, or, of their ``product``, B."""

    def __init__(self, ranks, balanced="factors"):
        super().__init__(ranks)
        self.balanced = balanced

    def rule(self, layer, old, clients):
        for j, scale in enumerate(layer.scale):
            having = [c for c in clients if c.rank > j]
            share = sum(c.weight for c in having)
            for c in having:
                weight = c.weight / share
                of_a = weight if self.balanced == "factors" else c.weight
                layer.lora_a[j] = of_a * c.layer.lora_a[j] + (layer.lora_a[j] if c is not having[0] else 0)
                own = weight * c.layer.scale[j] / scale * c.layer.lora_b[:, j]
                layer.lora_b[:, j] = own + (layer.lora_b[:, j] if c is not having[0] else 0)
            if not having:
                layer.lora_a[j], layer.lora_b[:, j] = old.lora_a[j], old.lora_b[:, j]
        set_factors(layer, layer.product())


class PlainHetLoRA(PlainLoRA):
    @torch.no_grad()
    def finish(self, client):
        """The norm of all its products."""
        return float(sum((layer.product() ** 2).sum() for layer in client.network.layers)) ** 0.5

    def aggregate(self, received, clients):
        self.norms = [client.report for client in clients]
        return super().aggregate(received, clients)

    def rule(self, layer, old, clients):
        layer.lora_a[:], layer.lora_b[:] = 0, 0
        for c, norm in zip(clients, self.norms, strict=True):
            q, own = norm / sum(self.norms), slice(c.rank)
            layer.lora_a[own] += q * c.layer.lora_a[own]
            layer.lora_b[:, own] += q * c.layer.lora_b[:, own] * c.layer.scale[own] / layer.scale[own]


class PlainPruningHetLoRA(PlainHetLoRA):
    """Clients whose tail has become smaller have the rank without it from then on."""

    def __init__(self, ranks, strength, gamma):
        super().__init__(ranks)
        self.strength, self.gamma, self.pruned, self.smaller = strength, gamma, collections.Counter(), []

    def rank_of(self, id):
        return super().rank_of(id) - self.pruned[int(id)]

    def start_client(self, client):
        super().start_client(client)
        self.tail = slice(max(1, int(self.gamma * client.rank)), client.rank)
        client.before = self.size_of_tail(client.network).item()

    def size_of_tail(self, network):
        return sum(layer.lora_a[self.tail].norm() * layer.lora_b[:, self.tail].norm() for layer in network.layers)

    def penalty(self, step):
        return self.strength * self.size_of_tail(step.network)

    def finish(self, client):
        self.smaller.append(self.size_of_tail(client.network).item() < client.before)
        if self.smaller[-1]:
            self.pruned[int(client.id)] += self.tail.stop - self.tail.start
        return super().finish(client)

    def check(self, found, rounds):
        assert found.state.clients.memory["hetlora"].tolist() == [self.pruned[i] for i in range(5)]
        assert 0 < sum(self.smaller) < len(self.smaller)


class PlainLoRAFAIR(PlainLoRA):
    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def rule(self, layer, old, clients):
        a = layer.scale[:, None] * layer.lora_a
        ridge = a @ a.T + self.strength * torch.eye(len(a))
        layer.lora_b += torch.linalg.solve(ridge, a @ (mean_product(clients) - layer.product()).T).T


class PlainCosineLoRAFAIR(PlainLoRA):
    """The correction by steps of gradient descent on the products themselves."""

    def __init__(self, strength, steps, rate):
        super().__init__()
        self.strength, self.steps, self.rate = strength, steps, rate

    @torch.enable_grad()
    def rule(self, layer, old, clients):
        mean, correction = mean_product(clients).detach().flatten(), torch.zeros_like(layer.lora_b, requires_grad=True)
        a, b = (layer.scale[:, None] * layer.lora_a).detach(), layer.lora_b.detach()
        for _ in range(self.steps):
            cosine = torch.nn.functional.cosine_similarity(mean, ((b + correction) @ a).flatten(), dim=0)
            loss = 1 - cosine + self.strength * correction.norm()
            (gradient,) = torch.autograd.grad(loss, correction)
            correction = (correction - self.rate * gradient).detach().requires_grad_()
        with torch.no_grad():
            layer.lora_b += correction
