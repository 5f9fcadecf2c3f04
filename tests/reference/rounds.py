"""Whole rounds in plain PyTorch: one client after another, one model, torch.optim.SGD, its own BatchNorm.

The reference shares nothing with the library but initial weights and its random draws: the cohort of a round, the order
of examples within an epoch, the key of a step. Between server and clients parameters are one flat vector.
"""

import contextlib
import copy
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import torch

from fedjax_collapse import LocalTraining, Participation
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.data.batches import shuffled_rows
from reference.networks import TorchCNN, load_params, state, statistics, vector

torch.set_num_threads(1)  # for so small a network several wait longer for one another than they work

cross_entropy = torch.nn.functional.cross_entropy
TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9, weight_decay=1e-3)
TOLERANCE = 1e-10  # of what the library stores
EVERYTHING, HEAD, BODY, NORMS = ("",), ("head",), ("convs", "norms"), ("norms",)  # parts, by what is in a name


class PlainFedAvg:
    """Federated averaging, of which a method changes what it does otherwise.

    A step has features, logits, images, labels, network and key; a client has id, key, labels and images, network, the
    flat ``received`` and learning_rate; when it is trained also its flat ``params`` (the server's where they are
    private), statistics, and steps; when it is heard also report and weight. Other images and labels are ``held_out``.
    """

    private = ()  # the part that clients keep
    averages_alike = False  # whether the server's model is that of federated averaging
    newcomers_have_the_mean = False  # of the private parts of the last cohort, as long as they were in none
    phases = None  # parts that are trained in turn, with their epochs
    keeps = ()  # what the server keeps besides what is private or frozen

    def alone(self):
        """Federated averaging of the same network."""
        return PlainFedAvg()

    def setup(self, num_params, counts, training):
        """``counts`` [clients, classes]: of all clients' examples."""
        self.num_params, self.counts, self.training = num_params, counts, training
        self.sizes = counts.sum(1).numpy().astype(int)

    def first_reports(self, rounds, key):
        """Before the first round; ``key``: that of each client follows from it and the client's number."""

    def start(self):
        """Before each ``round``, in which the server's network is ``received``, as ``initial`` was in the first one."""

    def start_client(self, client):
        pass

    def held_out(self, size):
        """How many of a client's last examples it does not train on."""
        return 0

    def penalty(self, step):
        return 0.0

    def loss(self, step):
        return cross_entropy(step.logits, step.labels) + self.penalty(step)

    def backward(self, client, loss):
        """Leaves the gradient in the client's network; ``loss()`` runs it on the batch."""
        loss().backward()

    def correction(self, client, w):
        """Added to the gradient at ``w``."""
        return 0.0

    def decay(self, client):
        """Added to the weight decay."""
        return 0.0

    def finish(self, client):
        """What the client reports; it is just trained, in evaluation mode."""

    def weights(self, sizes):
        return sizes / sizes.sum()

    def average(self, clients):
        return sum(client.weight * client.params for client in clients)

    def aggregate(self, received, clients):
        """The server's params, of those that it sent and of the clients that are heard."""
        return self.average(clients)

    def check(self, found, rounds):
        """That the library stores what the method does; ``found``: ``algorithm``, ``model``, ``state``."""


class Rounds:
    """A method's rounds from the library's ``variables``, in their precision: the server's network, the clients' own.

    ``make``: the class of the network.
    """

    def __init__(self, federation, method, variables, training=TRAINING, make=TorchCNN):
        self.federation, self.method, self.training = federation, method, training
        self.sizes = np.asarray(federation.ownership.sizes)
        self.dtype = torch.tensor(np.array(jax.tree.leaves(variables)[0])).dtype
        with self.precision():
            self.images, self.labels = self.read(federation.train)
            self.server = make.of(variables)
            self.own = [copy.deepcopy(self.server)] * len(self.sizes)
            self.optimizers = [None] * len(self.sizes)  # states of the last rounds
            self.newcomers = set(range(len(self.sizes)))
            method.setup(len(vector(self.server.parameters())), self.class_counts().to(self.dtype), training)

    def read(self, examples):
        """Inputs, as the network takes them, and labels."""
        images = (np.asarray(examples.inputs, np.float64) - 100) / 64
        return torch.tensor(images).permute(0, 3, 1, 2).to(self.dtype), torch.tensor(np.array(examples.labels)).long()

    def class_counts(self):
        """[clients, classes] or, without classes, of all examples."""
        labels = [self.labels[np.array(rows)[:size]] for rows, size in zip(*self.federation.ownership, strict=True)]
        return torch.stack([torch.bincount(own, minlength=4) for own in labels])

    @contextlib.contextmanager
    def precision(self):
        torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    def run(self, key, rounds=2, cohort_size=3, arrived=None):
        """Itself, after so many rounds; ``arrived``: [rounds, clients], 0 where an upload is lost."""
        with self.precision():
            self.method.first_reports(self, Stream.FIRST_REPORTS.key(key))
            for round in range(rounds):
                self.method.round, self.method.received = round, copy.deepcopy(self.server).eval()
                if round == 0:
                    self.method.initial = self.method.received
                self.method.start()
                cohort = cohort_of(key, round, self.sizes, cohort_size)
                clients = [self.train(key, round, i) for i in cohort]
                self.update([c for c in clients if arrived is None or arrived[round][c.id]])
        return self

    def params(self, flat):
        """The library's params, of a flat vector."""
        return load_params(copy.deepcopy(self.server), flat).dump().params

    def personal(self, i):
        """The client's network: of its own where parts are private, else the server's."""
        network, own = copy.deepcopy(self.server), state(self.own[i])
        for name, tensor in state(network).items():
            if is_in(name, self.method.private):
                tensor.copy_(own[name])
        return network

    def train(self, key, round, i):
        size = int(self.sizes[i]) - self.method.held_out(int(self.sizes[i]))
        own, held_out = np.split(np.array(self.federation.ownership.rows[i])[: self.sizes[i]], [size])
        options, phases = self.training, self.method.phases or [(self.trained_part(), self.training.epochs)]
        rate = options.learning_rate * (1 if options.schedule is None else options.schedule.keywords["factor"] ** round)
        client = SimpleNamespace(id=i, network=self.personal(i).train(), learning_rate=rate, steps=0)
        client.images, client.labels = self.images[own], self.labels[own]
        client.held_out = self.images[held_out], self.labels[held_out]
        client.received = vector(self.server.parameters())
        client.key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, round), 1), i)
        self.method.start_client(client)
        epochs = self.epochs(client.key, i, size)
        for part, num_epochs in phases:
            optimizer = self.optimizer(client, part)
            if self.optimizers[i] and not options.momentum_reset:
                groups = optimizer.state_dict()["param_groups"]  # with the learning rate of this round
                optimizer.load_state_dict({"state": self.optimizers[i]["state"], "param_groups": groups})
            for rows, step_key in itertools.chain(*itertools.islice(epochs, num_epochs)):
                if len(rows) == options.batch_size or not options.drop_last:
                    self.step(client, optimizer, rows, step_key)
            self.optimizers[i] = copy.deepcopy(optimizer.state_dict())
        self.own[i] = client.network.eval()
        self.newcomers.discard(int(i))
        client.params = torch.where(self.is_private(), client.received, vector(client.network.parameters()))
        keeps = is_in("norms", self.method.private)
        client.statistics = vector(statistics(self.server if keeps else client.network))
        client.report = self.method.finish(client)
        return client

    def epochs(self, key, i, size):
        """Of each of the client's epochs the rows, and the key, of every step; a method's own key follows from it."""
        batch_size = self.training.batch_size
        for epoch in itertools.count():
            key_order, key_steps = jax.random.split(jax.random.fold_in(key, epoch))
            rows = np.array(shuffled_rows(key_order, self.federation.ownership.rows[i], size))[:size]
            starts = enumerate(range(0, size, batch_size))
            yield [(rows[first : first + batch_size], jax.random.fold_in(key_steps, i)) for i, first in starts]

    def trained_part(self):
        return {"none": EVERYTHING, "head": BODY}[self.training.freeze]

    def is_private(self):
        named = self.server.named_parameters()
        return vector([torch.full_like(p, is_in(name, self.method.private)) for name, p in named]) == 1

    def optimizer(self, client, part):
        decay, more = self.training.weight_decay, self.method.decay(client)
        groups = [
            dict(params=[p], weight_decay=decay + more * (not is_in(name, self.method.private)))
            for name, p in client.network.named_parameters()
            if is_in(name, part)
        ]
        return sgd(groups, client.learning_rate, self.training)

    def step(self, client, optimizer, rows, key):
        images, labels, params = self.images[rows], self.labels[rows], list(client.network.parameters())

        client.batch = SimpleNamespace(images=images, labels=labels)

        def loss():
            features, logits = client.network(images)
            batch = dict(images=images, labels=labels, network=client.network, key=key)
            return self.method.loss(SimpleNamespace(features=features, logits=logits, **batch))

        client.network.zero_grad()
        self.method.backward(client, loss)
        correction = self.method.correction(client, vector(params)) + torch.zeros_like(client.received)
        correction = torch.where(self.is_private(), 0, correction).split([p.numel() for p in params])
        for p, added in zip(params, correction, strict=True):
            p.grad = added.view_as(p) + (0 if p.grad is None else p.grad)
        if self.training.clip_norm is not None:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(trained, self.training.clip_norm)
        optimizer.step()
        client.steps += 1

    def update(self, clients):
        weights = self.method.weights(self.sizes[[client.id for client in clients]])
        for client, weight in zip(clients, weights, strict=True):
            client.weight = float(weight)
        mean = sum(client.weight * client.statistics for client in clients)
        new = self.method.aggregate(vector(self.server.parameters()), clients)
        load_params(self.server, new)
        if self.method.newcomers_have_the_mean:
            trained, newcomer = [state(client.network) for client in clients], copy.deepcopy(self.server)
            of_cohort = {n: sum(c.weight * own[n] for c, own in zip(clients, trained, strict=True)) for n in trained[0]}
            newcomer.load_state_dict(of_cohort, strict=False)
            self.own = [newcomer if i in self.newcomers else own for i, own in enumerate(self.own)]
        torch.nn.utils.vector_to_parameters(mean, statistics(self.server))


def sgd(params, learning_rate, training):
    return torch.optim.SGD(params, learning_rate, training.momentum, weight_decay=training.weight_decay)


def is_in(name, part):
    """Whether the parameter or statistic of that name belongs to the part."""
    return any(word in name for word in part)


def cohort_of(key, round, sizes, cohort_size):
    """The identities of a round's cohort."""
    return np.array(Participation().draw(jax.random.fold_in(key, round), sizes, cohort_size))
