"""Methods whose clients use models of their own, or step with several models at once."""

import copy

import numpy as np
import torch
from conftest import assert_close
from torch.nn.utils import vector_to_parameters

from fedjax_collapse.training import client_memory
from reference.networks import load_params, set_gradient, stacked, statistics, vector
from reference.rounds import BODY, EVERYTHING, TOLERANCE, PlainFedAvg, cross_entropy, is_in, sgd


class PlainOwn(PlainFedAvg):
    """A network of each client, which the method ``name`` stores."""

    def setup(self, num_params, counts, training):
        super().setup(num_params, counts, training)
        self.own = {}

    def check(self, found, rounds):
        models = [self.own.get(i, self.initial).dump() for i in range(len(self.sizes))]
        assert_close(found.state.clients.memory[self.name], stacked(models), TOLERANCE)


class PlainDitto(PlainOwn):
    """A second network of each client, which sees the batches of the first."""

    averages_alike, name = True, "ditto"

    def __init__(self, strength):
        self.strength = strength

    def start_client(self, client):
        if client.id not in self.own:
            self.own[client.id] = copy.deepcopy(self.initial)
        client.second = self.own[client.id].train()
        client.second_optimizer = sgd(client.second.parameters(), client.learning_rate, self.training)

    def backward(self, client, loss):
        loss().backward()
        client.second.zero_grad()
        _, logits = client.second(client.batch.images)
        own = torch.nn.utils.parameters_to_vector(client.second.parameters())
        distance = ((own - client.received) ** 2).sum()
        task = cross_entropy(logits, client.batch.labels)
        (task + self.strength / 2 * distance).backward()
        client.second_optimizer.step()


class PlainSteps(PlainFedAvg):
    """Passes at other params than those that are trained; the first moves running statistics."""

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


class PlainPFedMe(PlainSteps, PlainOwn):
    """With the steps' rate, decay and number; ``is_kept``: theta goes on from batch to batch."""

    name = "pfedme"

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


class PlainPerFedAvg(PlainSteps):
    """With the Hessian if there is a ``delta``."""

    def __init__(self, alpha, delta=None):
        self.alpha, self.delta = alpha, delta

    def loss_of(self, client, rows):
        def loss():
            _, logits = client.network(client.batch.images[rows])
            return cross_entropy(logits, client.batch.labels[rows])

        return loss

    def backward(self, client, loss):
        count, parts = len(client.batch.labels), 2 if self.delta is None else 3
        chunks = [chunk.tolist() for chunk in torch.arange(count).tensor_split(parts)]
        adapting, meta, *own = [self.loss_of(client, chunk if count >= parts else range(count)) for chunk in chunks]
        w = vector(client.network.parameters()).clone()
        adapted = w - self.alpha * self.gradient_at(client, w, adapting, moves_statistics=True)
        g = self.gradient_at(client, adapted, meta)
        for hessian in own:
            above, below = (self.gradient_at(client, w + d * g, hessian) for d in (self.delta, -self.delta))
            g = g - self.alpha * (above - below) / (2 * self.delta)
        set_gradient(client.network, g)


class PlainAPFL(PlainFedAvg):
    """A second network of each client, with an optimizer like that of the first."""

    averages_alike = True

    def __init__(self, alpha, variant):
        self.alpha, self.variant, self.own = alpha, variant, {}

    def start_client(self, client):
        second, client.alpha = self.own.get(client.id, (self.initial, self.alpha))
        client.second, client.is_first = copy.deepcopy(second).train(), True
        part = BODY if self.training.freeze == "head" else EVERYTHING
        named = list(client.second.named_parameters())
        client.trained = [p for name, p in named if is_in(name, part)]
        client.is_trained = vector([torch.full_like(p, is_in(name, part)) for name, p in named])
        client.second_optimizer = sgd(client.trained, client.learning_rate, self.training)

    def backward(self, client, loss):
        loss().backward()
        alpha, rate, v = client.alpha, client.learning_rate, vector(client.second.parameters())
        g = client.is_trained * vector([p.grad for p in client.network.parameters()])
        w = vector(client.network.parameters())
        after = load_params(copy.deepcopy(client.network), w - rate * g)
        if self.variant == "paper":
            run = load_params(copy.deepcopy(client.second), alpha * v + (1 - alpha) * w)
            (direction,) = self.slopes(client, [run], lambda out: out)
            slope = alpha * direction
            for own, new in zip(statistics(client.second), statistics(run), strict=True):
                own.copy_(new)
            self.step(client, slope)
            change = torch.dot(v - w, direction)
        else:
            if self.variant == "official":
                both = [client.second, after]
                slope, g = self.slopes(client, both, lambda own, shared: alpha * own + (1 - alpha) * shared)
            else:
                (slope,) = self.slopes(client, [client.second], lambda out: out)
            self.step(client, slope)
            gap = vector(client.second.parameters()) - vector(after.parameters())
            change = torch.dot(gap, alpha * slope + (1 - alpha) * g) + 0.02 * alpha
        if client.is_first or self.variant != "official":
            client.alpha = float(np.clip(alpha - rate * float(change), 0, 1))
        client.is_first = False

    def slopes(self, client, networks, mixed):
        """Of the loss of the outputs, as ``mixed``, in the params of each network."""
        logits = mixed(*(network(client.batch.images)[1] for network in networks))
        cross_entropy(logits, client.batch.labels).backward()
        found = [client.is_trained * vector([p.grad for p in network.parameters()]) for network in networks]
        for network in networks:
            network.zero_grad()
        return found

    def step(self, client, slope):
        set_gradient(client.second, slope)
        if self.training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(client.trained, self.training.clip_norm)
        client.second_optimizer.step()
        client.second.zero_grad()

    def finish(self, client):
        if self.variant == "pfllib":
            v, w = (vector(network.parameters()) for network in (client.second, client.network))
            load_params(client.second, client.alpha * v + (1 - client.alpha) * w)
        self.own[client.id] = client.second, client.alpha

    def check(self, found, rounds):
        stored = [self.own.get(i, (self.initial, self.alpha)) for i in range(len(self.sizes))]
        networks = stacked(network.dump() for network, _ in stored)
        memory = found.state.clients.memory["apfl"]
        trained = client_memory.stored({"of": networks}, {"of": memory.variables})["of"]  # without what is frozen
        assert_close(memory.variables, trained, TOLERANCE)
        assert_close(memory.alpha, np.array([alpha for _, alpha in stored]), TOLERANCE)
        assert len({alpha for _, alpha in stored}) > 2
