"""Rivals: federated averaging in plain PyTorch, clients one after another."""

import copy
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.workloads import BATCH_SIZE, EPOCHS, LEARNING_RATE, MOMENTUM, SEED, Task, Workload


def resident(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The fastest loop we can write by hand: one model that stays, its weights copied in, tensors sliced in memory."""
    return _lanes(workload, task, lanes=1, threads=setting.cores)


def threads(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The same in as many Python threads as cores, a share of the clients and one core for each."""
    return _lanes(workload, task, lanes=setting.cores, threads=1)


def dataloader(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The loop of the papers' released code: a deep copy of the model and a ``DataLoader`` for each client."""
    torch.set_num_threads(setting.cores)
    torch.manual_seed(SEED)
    server, dataset = _network(workload, task), TensorDataset(*_tensors(task))
    clients = [Subset(dataset, part.tolist()) for part in task.parts]
    while True:
        networks, counts = zip(*[_train_copy(server, client) for client in clients], strict=True)
        states = [network.state_dict() for network in networks]
        shares = [len(client) / len(task.labels) for client in clients]
        server.load_state_dict({k: sum(w * s[k] for w, s in zip(shares, states, strict=True)) for k in states[0]})
        yield _round(counts, f"{setting.cores} threads")


def _train_copy(server, client):
    network = copy.deepcopy(server)
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, MOMENTUM)
    total = samples = steps = 0
    for _ in range(EPOCHS):
        for images, labels in DataLoader(client, BATCH_SIZE, shuffle=True):
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            total, samples, steps = total + loss.item() * len(labels), samples + len(labels), steps + 1
    return network, (total / samples, samples, steps)


def _lanes(workload, task, lanes, threads):
    torch.set_num_threads(threads)
    networks = [_network(workload, task) for _ in range(lanes)]
    server = [weight.detach().clone() for weight in networks[0].parameters()]
    parts = sorted(map(torch.from_numpy, task.parts), key=len)
    data, shares = _tensors(task), [parts[lane::lanes] for lane in range(lanes)]
    generators = [torch.Generator().manual_seed(SEED + lane) for lane in range(lanes)]
    with ThreadPoolExecutor(lanes) as pool:
        run = map if lanes == 1 else pool.map
        while True:
            done = run(lambda *lane: _run_share(server, data, *lane), networks, shares, generators)
            sums, counts = zip(*done, strict=True)
            for weight, *summands in zip(server, *sums, strict=True):
                weight.copy_(sum(summands))
            yield _round(list(itertools.chain(*counts)), f"{lanes} x {threads} threads")


def _run_share(server, data, network, parts, generator):
    """The sum of the weighted models of these clients, and what each of them did."""
    images, labels = data
    weights = list(network.parameters())
    total, counts = [torch.zeros_like(weight) for weight in server], []
    for rows in parts:
        with torch.no_grad():
            torch._foreach_copy_(weights, server)
        counts.append(_train(network, weights, images, labels, rows, generator))
        with torch.no_grad():
            torch._foreach_add_(total, weights, alpha=len(rows) / len(labels))
    return total, counts


def _train(network, weights, images, labels, rows, generator):
    total, samples, steps, momenta = 0.0, 0, 0, None
    for _ in range(EPOCHS):
        order = rows[torch.randperm(len(rows), generator=generator)]
        for x, y in zip(images[order].split(BATCH_SIZE), labels[order].split(BATCH_SIZE), strict=True):
            loss = cross_entropy(network(x), y)
            gradients = torch.autograd.grad(loss, weights)
            momenta = _descend(weights, gradients, momenta)
            total, samples, steps = total + loss.item() * len(y), samples + len(y), steps + 1
    return total / samples, samples, steps


@torch.no_grad()
def _descend(weights, gradients, momenta):
    """SGD as ``torch.optim.SGD`` does it, without its bookkeeping, which costs a quarter of a step of a small MLP."""
    if momenta is None:
        momenta = gradients
    else:
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
    torch._foreach_add_(weights, momenta, alpha=-LEARNING_RATE)
    return momenta


def _network(workload, task):
    """The workload's network with the task's weights; channels last, where oneDNN is faster."""
    network = workload.torch_network()
    layers = [layer for layer in network if hasattr(layer, "weight")]
    for layer, bias, kernel in zip(layers, task.weights[::2], task.weights[1::2], strict=True):
        layer.bias.data = torch.tensor(bias)
        layer.weight.data = torch.tensor(np.ascontiguousarray(np.moveaxis(kernel, (-1, -2), (0, 1))))
    return network.to(memory_format=torch.channels_last)


def _tensors(task):
    """Normalised images [examples, channels, height, width], channels last in memory, and labels."""
    images = (torch.from_numpy(task.images).float() - task.mean) / task.std
    return images.permute(0, 3, 1, 2), torch.from_numpy(task.labels).long()


def _round(counts, layout):
    losses, samples, steps = zip(*counts, strict=True)
    return Round(losses, samples, steps, processed=sum(samples), layout=layout)
