"""Methods that change a local step, what clients keep, or what the server makes of their models."""

import jax
import numpy as np
import torch
from conftest import assert_close

from fedjax_collapse.core import masks
from fedjax_collapse.training import client_memory
from fedjax_collapse.training.server import evaluated
from reference.networks import stacked, statistics
from reference.rounds import BODY, EVERYTHING, HEAD, NORMS, TOLERANCE, PlainFedAvg, is_in


class PlainStates(PlainFedAvg):
    """With a vector at the server and one or two at each client, all zero before the first round."""

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.server = torch.zeros(num_params)
        self.own, self.h = torch.zeros(len(counts), num_params), torch.zeros(len(counts), num_params)

    def norm(self, steps):
        """1-norm of the weights of all gradients in the sum of momentum's buffers."""
        rho = self.training.momentum
        return sum(sum(rho**j for j in range(k + 1)) for k in range(steps))

    def stored(self):
        """What the library stores of a method by its name: at the server, and of all clients, as flat vectors."""
        return {}

    def check(self, found, rounds):
        for name, (shared, memory) in self.stored().items():
            assert_close(found.state.server.shared[name], jax.tree.map(rounds.params, shared), TOLERANCE)
            own = [jax.tree.map(lambda of_all, i=i: rounds.params(of_all[i]), memory) for i in range(len(self.sizes))]
            own, memory = stacked(own), found.state.clients.memory  # without what is frozen
            assert_close(memory[name], client_memory.stored({name: own}, memory)[name], TOLERANCE)


class PlainScaffold(PlainStates):
    """The server's control variate moves by the mean change over all clients of those that are heard."""

    strength = 1.0

    def correction(self, client, w):
        return self.strength * (self.server - self.own[client.id])

    def finish(self, client):
        moved = client.params - client.received
        change = -self.server - moved / (self.norm(client.steps) * client.learning_rate)
        self.own[client.id] += change
        return change

    def aggregate(self, received, clients):
        self.server = self.server + sum(client.report for client in clients) / len(self.sizes)
        return self.average(clients)

    def stored(self):
        return {"scaffold": (self.server, self.own)}


class PlainFedNova(PlainStates):
    def aggregate(self, received, clients):
        tau = sum(client.weight * self.norm(client.steps) for client in clients)
        return received + tau * sum(c.weight * (c.params - received) / self.norm(c.steps) for c in clients)


class PlainFedDyn(PlainStates):
    alpha = 0.1

    def share(self, client):
        """The client's alpha, by its size."""
        return self.alpha * self.sizes.mean() / self.sizes[client.id]

    def weights(self, sizes):
        return [1 / len(sizes)] * len(sizes)

    def correction(self, client, w):
        return self.share(client) * (self.h[client.id] - client.received)

    def decay(self, client):
        return self.share(client)

    def finish(self, client):
        self.h[client.id] += client.params - client.received

    def aggregate(self, received, clients):
        return self.average(clients) + self.h.mean(0)

    def stored(self):
        return {"feddyn": ({"h": self.h.mean(0)}, {"h": self.h})}


class PlainFedDC(PlainFedDyn):
    def decay(self, client):
        return 0

    def omega(self, client):
        return self.sizes[client.id] / self.sizes.mean()

    def correction(self, client, w):
        pull = self.share(client) * (w - client.received + self.h[client.id])
        return pull + self.server / self.omega(client) - self.own[client.id]

    def finish(self, client):
        super().finish(client)
        all_steps = self.training.epochs * np.ceil(self.sizes.mean() / self.training.batch_size)
        moved = client.params - client.received
        change = -self.server / self.omega(client) - moved / (all_steps * self.training.learning_rate)
        self.own[client.id] += change
        return self.omega(client) * change

    def aggregate(self, received, clients):
        self.server = self.server + sum(client.report for client in clients) / len(self.sizes)
        return super().aggregate(received, clients)

    def stored(self):
        shared = {"drift": self.h.mean(0), "gradient": self.server}
        return {"feddc": (shared, {"drift": self.h, "gradient": self.own})}


class PlainFedExP(PlainStates):
    """Of params alone; running statistics are averaged. With a private head, of uploads whose largest quarter in each
    array is sent; the rest is added to the next."""

    private = HEAD

    def finish(self, client):
        whole = client.params - client.received + self.own[client.id]
        parts = whole.split([p.numel() for p in client.network.parameters()])
        sent = torch.cat([torch.where(p.abs() >= p.abs().topk(-(-len(p) // 4)).values[-1], p, 0) for p in parts])
        self.own[client.id] = whole - sent
        client.params = client.received + sent

    def aggregate(self, received, clients):
        moved = self.average(clients) - received
        squares = sum(client.weight * torch.sum((client.params - received) ** 2) for client in clients)
        self.eta = max(1, float(squares / (2 * (torch.sum(moved**2) + 1e-6 * len(clients)))))
        self.last_two = received, received + self.eta * moved
        return self.last_two[1]

    def stored(self):
        return {"top_k": ((), self.own)}

    def check(self, found, rounds):
        """Evaluated is the mean of the last two bodies."""
        super().check(found, rounds)
        assert self.eta > 1.001
        scored = evaluated(found.algorithm, found.model, found.state.server, found.state.clients).params
        body, expected = found.model.mask("body").params, rounds.params(sum(self.last_two) / 2)
        assert_close(masks.select(body, scored), masks.select(body, expected), TOLERANCE)


class PlainSharp(PlainStates):
    """``rho`` is the length of the perturbation, of what is in ``part``."""

    rho, part, guard = 0.3, EVERYTHING, 1e-7

    def perturbed(self, client):
        """The parameters that are, by name."""
        return {name: p for name, p in client.network.named_parameters() if is_in(name, self.part)}

    def ascend(self, params, directions, norm):
        """Moves the parameters; returns what they were."""
        before = [p.detach().clone() for p in params]
        for p, direction in zip(params, directions, strict=True):
            p.data += self.rho * direction / (norm + self.guard)
        return before


class PlainSAM(PlainSharp):
    """The first pass moves running statistics, the second sees the same batch at w + eps."""

    def size(self, name, p):
        return torch.ones_like(p)

    def backward(self, client, loss):
        loss().backward()
        named, buffers = self.perturbed(client), statistics(client.network)
        params, sizes = named.values(), [self.size(name, p.detach()) for name, p in named.items()]
        scaled = [size * p.grad for size, p in zip(sizes, params, strict=True)]
        directions = [size * s for size, s in zip(sizes, scaled, strict=True)]
        moved = [b.clone() for b in buffers]
        before = self.ascend(params, directions, norm_of(scaled))
        client.network.zero_grad()
        loss().backward()
        restore([*params, *buffers], [*before, *moved])


class PlainLESAM(PlainSharp):
    """``sent``: the params that each client received in its last round."""

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.sent = {}

    def backward(self, client, loss):
        if client.id not in self.sent:
            return loss().backward()
        params, named = self.perturbed(client).values(), list(client.network.named_parameters())
        back = torch.split(self.sent[client.id] - client.received, [p.numel() for _, p in named])
        back = [b.view_as(p) for b, (name, p) in zip(back, named, strict=True) if is_in(name, self.part)]
        before = self.ascend(params, back, norm_of(back))
        loss().backward()
        restore(params, before)

    def finish(self, client):
        self.sent[client.id] = client.received
        return super().finish(client)


def norm_of(tensors):
    return torch.sqrt(sum((t**2).sum() for t in tensors))


def restore(tensors, values):
    for tensor, value in zip(tensors, values, strict=True):
        tensor.data.copy_(value)


class LESAMOnScaffold(PlainLESAM, PlainScaffold):
    strength = 0.1


class LESAMOnDyn(PlainLESAM, PlainFedDyn):
    private, part = NORMS, ("convs", "head")


class AdaptiveWithFrozenHead(PlainSAM):
    """By the flag of FedLESAM's code."""

    part = BODY

    def size(self, name, p):
        return p.abs()


class PlainASAM(PlainSAM):
    """The authors': what PyTorch calls weight, of convolutions, BatchNorm and the head."""

    guard = 1e-16

    def size(self, name, p):
        return p.abs() + 0.2 if "weight" in name else torch.ones_like(p)


class MoFedSAM(PlainSAM):
    alpha = 0.4

    def backward(self, client, loss):
        super().backward(client, loss)
        for p in client.network.parameters():
            p.grad *= self.alpha

    def correction(self, client, w):
        return (1 - self.alpha) * self.server

    def aggregate(self, received, clients):
        rate = clients[0].learning_rate  # of the round in which it is made
        self.server = sum(c.weight * (received - c.params) / (self.norm(c.steps) * rate) for c in clients)
        return self.average(clients)


class PlainFedPer(PlainFedAvg):
    private = HEAD


class PlainFedRep(PlainFedPer):
    phases, newcomers_have_the_mean = ((HEAD, 2), (BODY, 1)), True

    def weights(self, sizes):
        return [1 / len(sizes)] * len(sizes)


class PlainLGFedAvg(PlainFedAvg):
    private = BODY
