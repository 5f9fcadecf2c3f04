"""Whole rounds in plain PyTorch: one client after another, one model, torch.optim.SGD, its own BatchNorm.

The reference shares nothing with the library but initial weights and its random draws: the cohort of a round, the order
of examples within an epoch, the key of a step.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import torch

from fedjax_collapse import FedAvg, LocalTraining, Model, Participation, engine, nn
from fedjax_collapse.data.batches import shuffled_rows
from fedjax_collapse.records import Variables

torch.set_num_threads(1)  # for so small a network several wait longer for one another than they work

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9, weight_decay=1e-3)


class TorchCNN(torch.nn.Module):
    """The network of ``nn.SmallCNN(4, channels)``, of two channels, in PyTorch layers."""

    def __init__(self, channels):
        super().__init__()
        first, last = channels
        self.convs = torch.nn.ModuleList(
            [torch.nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((2, first), (first, last))]
        )
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(first), torch.nn.BatchNorm2d(last)])
        self.head = torch.nn.Linear(last, 4)

    def forward(self, x):
        x = self.convs[0](x)
        x = torch.relu(self.norms[0](x))
        x = torch.relu(self.norms[1](self.convs[1](torch.nn.functional.max_pool2d(x, 2))))
        features = x.mean((2, 3))
        return features, self.head(features)

    def load(self, variables):
        params, stats = (jax.tree.map(lambda a: torch.tensor(np.array(a)), tree) for tree in variables)
        with torch.no_grad():
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                conv.weight.copy_(params[f"Conv_{i}"]["kernel"].permute(3, 2, 0, 1))
                norm.weight.copy_(params[f"BatchNorm_{i}"]["scale"])
                norm.bias.copy_(params[f"BatchNorm_{i}"]["bias"])
                norm.running_mean.copy_(stats[f"BatchNorm_{i}"]["mean"])
                norm.running_var.copy_(stats[f"BatchNorm_{i}"]["var"])
            self.load_head(params)
        return self

    def load_head(self, params):
        self.head.weight.copy_(params["Dense_0"]["kernel"].T)
        self.head.bias.copy_(params["Dense_0"]["bias"])

    def dump_head(self):
        return {"Dense_0": {"kernel": self.head.weight.T, "bias": self.head.bias}}

    def dump(self):
        params, stats = self.dump_head(), {}
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            params[f"Conv_{i}"] = {"kernel": conv.weight.permute(2, 3, 1, 0)}
            params[f"BatchNorm_{i}"] = {"scale": norm.weight, "bias": norm.bias}
            stats[f"BatchNorm_{i}"] = {"mean": norm.running_mean, "var": norm.running_var}
        return jax.tree.map(lambda t: t.detach().numpy().copy(), Variables(params, stats))


class Method:
    """What a method adds to federated averaging; a step has features, logits, images, labels, network and key."""

    def start(self, round, server):
        """``server``: its network, in evaluation mode, which nothing changes during the round."""

    def start_client(self, client, labels):
        pass

    def penalty(self, step):
        return 0.0

    def loss(self, step):
        return torch.nn.functional.cross_entropy(step.logits, step.labels) + self.penalty(step)

    def finish_client(self, client, network, images, labels):
        """``network``: just trained, in evaluation mode; all of the client's images and labels."""

    def finish(self):
        pass

    def aggregate(self, received, trained, weights):
        """The server's variables, of those that it sent and those of the cohort."""
        return jax.tree.map(lambda *leaves: np.tensordot(weights, np.stack(leaves), 1), *trained)


def cohort_of(key_rounds, round, sizes, cohort_size):
    """The identities of a round's cohort."""
    return np.array(Participation().draw(jax.random.fold_in(key_rounds, round), sizes, cohort_size))


def steps_of(federation, key_rounds, round, client, epochs=TRAINING.epochs):
    """The rows, and the key, of every step of one client in one round; a method's own key follows from it."""
    key = jax.random.fold_in(jax.random.fold_in(key_rounds, round), 1)
    key = jax.random.fold_in(key, client)
    size = int(federation.ownership.sizes[client])
    for epoch in range(epochs):
        key_order, key_steps = jax.random.split(jax.random.fold_in(key, epoch))
        rows = np.array(shuffled_rows(key_order, federation.ownership.rows[client], size))[:size]
        for index, first in enumerate(range(0, size, TRAINING.batch_size)):
            yield rows[first : first + TRAINING.batch_size], jax.random.fold_in(key_steps, index)


def train_client(network, method, steps, images, labels):
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    for rows, key in steps:
        features, logits = network(images[rows])
        batch = dict(images=images[rows], labels=labels[rows], network=network, key=key)
        loss = method.loss(SimpleNamespace(features=features, logits=logits, **batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()


def reference(federation, variables, key_rounds, method, rounds=2, cohort_size=5, channels=(5, 7), make=TorchCNN):
    """The server's variables after the rounds, of the network that ``make(channels)`` makes."""
    images = (np.asarray(federation.train.inputs, np.float32) - 100) / 64
    images = torch.tensor(images).permute(0, 3, 1, 2).to(torch.get_default_dtype())
    labels = torch.tensor(np.array(federation.train.labels)).long()
    sizes = np.asarray(federation.ownership.sizes)
    for round in range(rounds):
        method.start(round, make(channels).load(variables).eval())
        trained = []
        cohort = cohort_of(key_rounds, round, sizes, cohort_size)
        for client in cohort:
            own = np.array(federation.ownership.rows[client])[: sizes[client]]
            network = make(channels).load(variables)
            method.start_client(client, labels[own])
            train_client(network, method, steps_of(federation, key_rounds, round, client), images, labels)
            method.finish_client(client, network, images[own], labels[own])
            trained.append(network.dump())
        method.finish()
        weights = sizes[cohort] / sizes[cohort].sum()
        variables = method.aggregate(variables, trained, weights)
    return variables


CHANNELS, ROUNDS, COHORT_SIZE, KEY = (5, 8), 2, 3, 7


def small_model(federation):
    """The network of ``run_both`` and its initial variables, in float64."""
    with jax.enable_x64(True):
        model = Model(nn.SmallCNN(4, CHANNELS), federation.input_shape)
        return model, jax.device_get(model.init(jax.random.key(0)))


def run_reference(federation, method):
    """The reference's server after two rounds of three of the five clients, in float64."""
    torch.set_default_dtype(torch.float64)
    variables = small_model(federation)[1]
    with jax.enable_x64(True):  # random draws differ without
        expected = reference(federation, variables, jax.random.key(KEY), method, ROUNDS, COHORT_SIZE, CHANNELS)
    torch.set_default_dtype(torch.float32)
    return expected


def run_library(federation, algorithm):
    """The library's state after the same rounds, in which some clients take part twice, some once and one never."""
    model, variables = small_model(federation)
    with jax.enable_x64(True):
        algorithm = jax.tree.map(jnp.asarray, algorithm)
        state = engine.init(algorithm, model, variables, federation.num_clients, jax.random.key(KEY))
        layout = engine.Layout(engine.Chunked(2), COHORT_SIZE, ROUNDS)
        data = engine.Data(federation.train, federation.ownership)
        rounds = engine.Rounds(model, layout)
        state, _ = engine.with_first_reports(rounds, algorithm, state, data)
        state = engine.run_rounds(rounds, algorithm, state, data, ROUNDS).state
        return jax.device_get(state._replace(key=None))


def run_both(federation, methods, method):
    """The library's state, and the reference's server."""
    return run_library(federation, FedAvg(TRAINING, methods)), run_reference(federation, method)
