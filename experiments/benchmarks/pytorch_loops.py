"""The system ``pytorch``: federated averaging in plain PyTorch, clients one after another."""

import copy
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from experiments.benchmarks import Round, Setting, networks, pytorch_networks
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import SEED, Training, Workload

PAD = 0  # the label of a token that is no target


def resident(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The fastest loop we can write by hand: one model that stays, its weights copied in, tensors sliced in memory."""
    return _lanes(workload, task, lanes=1, threads=setting.cores, device=place(setting.device))


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
        trained, counts = zip(*[_train_copy(server, clients[i], workload) for i in cohort], strict=True)
        states = [network.state_dict() for network in trained]
        weights = [workload.weight(len(clients[i])) for i in cohort]
        shares = [weight / sum(weights) for weight in weights]
        server.load_state_dict({k: sum(w * s[k] for w, s in zip(shares, states, strict=True)) for k in states[0]})
        yield _round(counts, f"{setting.cores} threads")


def _train_copy(server, client, workload):
    network, training = copy.deepcopy(server), workload.training
    optimizer = torch.optim.SGD(network.parameters(), training.learning_rate, training.momentum)
    total = counted = samples = steps = 0
    for _ in range(training.epochs):
        for inputs, labels in DataLoader(client, training.batch_size, shuffle=True):
            optimizer.zero_grad()
            loss, count = loss_and_count(workload.task, network(inputs), labels)
            loss.backward()
            optimizer.step()
            total, counted = total + loss.item() * count, counted + count
            samples, steps = samples + len(labels), steps + 1
    return network, (total / counted, samples, steps)


def place(device: str) -> str:
    """Returns PyTorch's name of a device. On a GPU, float32 products are TF32, as in JAX."""
    if device == "cpu":
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
    own = [_Own(workload, server) for _ in task.parts]
    with ThreadPoolExecutor(lanes) as pool:
        run = map if lanes == 1 else pool.map
        for cohort in itertools.cycle(task.cohorts):
            clients = sorted(((parts[i], own[i]) for i in cohort), key=lambda client: len(client[0]))
            deal = [clients[lane::lanes] for lane in range(lanes)]
            done = run(lambda *lane: _run_share(server, data, workload, *lane), resident_networks, deal, generators)
            sums, counts = zip(*done, strict=True)
            for tensor, *summands in zip(server, *sums, strict=True):
                tensor.copy_(sum(summands) / sum(workload.weight(len(rows)) for rows, _ in clients))
            yield _round(list(itertools.chain(*counts)), f"{lanes} x {threads} threads")


class _Own:
    """What a client keeps: nothing, its head (FedPer) or a model (Ditto), which start at the server's."""

    def __init__(self, workload, server):
        kept = {"fedavg": [], "fedper": server[-2:], "ditto": server}[workload.method]
        self.method, self.tensors = workload.method, [tensor.clone() for tensor in kept]
        self.options = workload.training, workload.task

    def train(self, server, network, data, rows, generator):
        """Trains the network, which has the server's weights, in place; returns the report."""
        own = pytorch_networks.tensors(network)
        if self.method == "ditto":
            with torch.no_grad():
                torch._foreach_copy_(own, self.tensors)
            train(network, *data, rows, *self.options, generator, towards=server)
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, own)
                torch._foreach_copy_(own, server)
        if self.method != "fedper":
            return train(network, *data, rows, *self.options, generator)
        with torch.no_grad():
            torch._foreach_copy_(own[-2:], self.tensors)
        report = train(network, *data, rows, *self.options, generator)
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, own[-2:])
            torch._foreach_copy_(own[-2:], server[-2:])
        return report


def _run_share(server, data, workload, network, clients, generator):
    """Returns the weighted sum of these clients' models, and a report of each."""
    current = pytorch_networks.tensors(network)
    total, counts = [torch.zeros_like(tensor) for tensor in server], []
    for rows, own in clients:
        with torch.no_grad():
            torch._foreach_copy_(current, server)
        counts.append(own.train(server, network, data, rows, generator))
        with torch.no_grad():
            torch._foreach_add_(total, current, alpha=workload.weight(len(rows)))
    return total, counts


def train(
    network: torch.nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    rows: torch.Tensor,
    training: Training,
    task: str = "classification",
    generator: torch.Generator | None = None,
    towards: list[torch.Tensor] | None = None,
) -> tuple[float, int, int]:
    """One client's local training in place: its mean loss over what it trained on, the number of samples, and steps.

    ``towards``: weights to which the gradient pulls, each step by the difference (Ditto with strength 1).
    """
    weights, momenta, losses, counts, samples = list(network.parameters()), None, [], [], 0
    for _ in range(training.epochs):
        order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
        batches = (data[order].split(training.batch_size) for data in (inputs, labels))
        for x, y in zip(*batches, strict=True):
            loss, count = loss_and_count(task, network(x), y)
            gradients = torch.autograd.grad(loss, weights)
            if towards is not None:
                gradients = torch._foreach_add(gradients, torch._foreach_sub(weights, towards))
            momenta = descend(weights, gradients, momenta, training)
            losses.append(loss.detach())  # read at the end, so that no step waits for the GPU
            counts.append(count)
            samples += len(y)
    total = sum(loss * count for loss, count in zip(torch.stack(losses).tolist(), counts, strict=True))
    return total / sum(counts), samples, len(counts)


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
    built = networks.pytorch(workload.network, workload.input_shape)
    return pytorch_networks.load(built, task.weights).to(memory_format=torch.channels_last)


def tensors(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels. Images are normalised, [examples, channels, height, width], with channels last in memory."""
    inputs, labels = torch.from_numpy(task.inputs), torch.from_numpy(task.labels).long()
    if inputs.ndim < 4:
        return inputs.long(), labels
    return ((inputs.float() - task.mean) / task.std).permute(0, 3, 1, 2), labels


def loss_and_count(name: str, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The mean loss of a batch in the task of that name, and over how many: examples, or tokens with a target."""
    if name == "next_word":
        count = int((labels != PAD).sum())
        return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=PAD), count
    if name == "multi_label":
        return binary_cross_entropy_with_logits(outputs, labels.float()), len(labels)
    return cross_entropy(outputs, labels), len(labels)


def _round(counts, layout):
    losses, samples, steps = zip(*counts, strict=True)
    return Round(losses, samples, steps, processed=sum(samples), layout=layout)
