"""The system ``pytorch``: federated averaging in plain PyTorch, clients one after another."""

import copy
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from experiments.benchmarks import Round, Setting, networks, pytorch_networks
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import SEED, Training, Workload


def resident(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The fastest loop we can write by hand: one model that stays, its weights copied in, tensors sliced in memory."""
    return _lanes(workload, task, lanes=1, threads=setting.cores, device=_device(setting))


def threads(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The same in as many Python threads as cores, a share of the cohort and one core for each."""
    return _lanes(workload, task, lanes=setting.cores, threads=1)


def dataloader(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The loop of the papers' released code: a deep copy of the model and a ``DataLoader`` for each client."""
    torch.set_num_threads(setting.cores)
    torch.manual_seed(SEED)
    server, dataset = network(workload, task), TensorDataset(*tensors(task))
    clients = [Subset(dataset, part.tolist()) for part in task.parts]
    for cohort in itertools.cycle(task.cohorts):
        trained, counts = zip(*[_train_copy(server, clients[i], workload.training) for i in cohort], strict=True)
        states = [network.state_dict() for network in trained]
        shares = [len(clients[i]) / sum(len(clients[j]) for j in cohort) for i in cohort]
        server.load_state_dict({k: sum(w * s[k] for w, s in zip(shares, states, strict=True)) for k in states[0]})
        yield _round(counts, f"{setting.cores} threads")


def _train_copy(server, client, training):
    network = copy.deepcopy(server)
    optimizer = torch.optim.SGD(network.parameters(), training.learning_rate, training.momentum)
    total = samples = steps = 0
    for _ in range(training.epochs):
        for images, labels in DataLoader(client, training.batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            total, samples, steps = total + loss.item() * len(labels), samples + len(labels), steps + 1
    return network, (total / samples, samples, steps)


def _device(setting):
    """Returns the device of the loop. On a GPU, float32 products are TF32, as in JAX."""
    if setting.device == "cpu":
        return "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    return "cuda"


def _lanes(workload, task, lanes, threads, device="cpu"):
    torch.set_num_threads(threads)
    resident_networks = [network(workload, task).to(device) for _ in range(lanes)]
    server = [tensor.detach().clone() for tensor in pytorch_networks.tensors(resident_networks[0])]
    parts = [torch.from_numpy(part).to(device) for part in task.parts]
    data = [tensor.to(device) for tensor in tensors(task)]
    generators = [torch.Generator(device).manual_seed(SEED + lane) for lane in range(lanes)]
    own = [_Own(workload.method, server) for _ in task.parts]
    with ThreadPoolExecutor(lanes) as pool:
        run = map if lanes == 1 else pool.map
        for cohort in itertools.cycle(task.cohorts):
            clients = sorted(((parts[i], own[i]) for i in cohort), key=lambda client: len(client[0]))
            deal = [clients[lane::lanes] for lane in range(lanes)]
            done = run(
                lambda *lane: _run_share(server, data, workload.training, *lane), resident_networks, deal, generators
            )
            sums, counts = zip(*done, strict=True)
            for tensor, *summands in zip(server, *sums, strict=True):
                tensor.copy_(sum(summands) / sum(len(rows) for rows, _ in clients))
            yield _round(list(itertools.chain(*counts)), f"{lanes} x {threads} threads")


class _Own:
    """What a client keeps: nothing, its head (FedPer) or a model (Ditto), which start at the server's."""

    def __init__(self, method, server):
        kept = {"fedavg": [], "fedper": server[-2:], "ditto": server}[method]
        self.method, self.tensors = method, [tensor.clone() for tensor in kept]

    def train(self, server, network, data, rows, training, generator):
        """Trains the network, which has the server's weights, in place; returns the report."""
        own = pytorch_networks.tensors(network)
        if self.method == "ditto":
            with torch.no_grad():
                torch._foreach_copy_(own, self.tensors)
            train(network, *data, rows, training, generator, towards=server)
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, own)
                torch._foreach_copy_(own, server)
        if self.method != "fedper":
            return train(network, *data, rows, training, generator)
        with torch.no_grad():
            torch._foreach_copy_(own[-2:], self.tensors)
        report = train(network, *data, rows, training, generator)
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, own[-2:])
            torch._foreach_copy_(own[-2:], server[-2:])
        return report


def _run_share(server, data, training, network, clients, generator):
    """Returns the sum of these clients' models, weighted by their numbers of examples, and a report of each."""
    current = pytorch_networks.tensors(network)
    total, counts = [torch.zeros_like(tensor) for tensor in server], []
    for rows, own in clients:
        with torch.no_grad():
            torch._foreach_copy_(current, server)
        counts.append(own.train(server, network, data, rows, training, generator))
        with torch.no_grad():
            torch._foreach_add_(total, current, alpha=len(rows))
    return total, counts


def train(
    network: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rows: torch.Tensor,
    training: Training,
    generator: torch.Generator | None = None,
    towards: list[torch.Tensor] | None = None,
) -> tuple[float, int, int]:
    """One client's local training in place: its mean loss over the samples trained on, their number, and steps.

    ``towards``: weights to which the gradient pulls, each step by the difference (Ditto with strength 1).
    """
    weights, momenta, losses, counts = list(network.parameters()), None, [], []
    for _ in range(training.epochs):
        order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
        batches = (data[order].split(training.batch_size) for data in (images, labels))
        for x, y in zip(*batches, strict=True):
            loss = cross_entropy(network(x), y)
            gradients = torch.autograd.grad(loss, weights)
            if towards is not None:
                gradients = torch._foreach_add(gradients, torch._foreach_sub(weights, towards))
            momenta = descend(weights, gradients, momenta, training)
            losses.append(loss.detach())  # read at the end, so that no step waits for the GPU
            counts.append(len(y))
    total = sum(loss * count for loss, count in zip(torch.stack(losses).tolist(), counts, strict=True))
    return total / sum(counts), sum(counts), len(counts)


@torch.no_grad()
def descend(
    weights: list[torch.Tensor], gradients: list[torch.Tensor], momenta: list[torch.Tensor] | None, training: Training
) -> list[torch.Tensor]:
    """The new momenta, after a step on the weights in place.

    SGD as ``torch.optim.SGD`` does it, without its bookkeeping, which costs a quarter of a step of a small MLP.
    """
    if momenta is None or not training.momentum:
        momenta = gradients
    else:
        torch._foreach_mul_(momenta, training.momentum)
        torch._foreach_add_(momenta, gradients)
    torch._foreach_add_(weights, momenta, alpha=-training.learning_rate)
    return momenta


def network(workload: Workload, task: Task) -> torch.nn.Module:
    """The workload's network with the task's weights; channels last, where oneDNN is faster."""
    built = networks.pytorch(workload.network, workload.image_shape)
    return pytorch_networks.load(built, task.weights).to(memory_format=torch.channels_last)


def tensors(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised images [examples, channels, height, width], channels last in memory, and labels."""
    images = (torch.from_numpy(task.images).float() - task.mean) / task.std
    return images.permute(0, 3, 1, 2), torch.from_numpy(task.labels).long()


def _round(counts, layout):
    losses, samples, steps = zip(*counts, strict=True)
    return Round(losses, samples, steps, processed=sum(samples), layout=layout)
