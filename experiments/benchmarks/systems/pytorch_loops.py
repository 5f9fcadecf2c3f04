"""Systems of plain PyTorch: ``pytorch`` and ``pytorch-threads``, clients one after another."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from experiments.benchmarks import Round, Setting, networks
from experiments.benchmarks.workloads import SEED, Data, Task, Training, Workload
from fedjax_collapse.nn.interchange import torch_networks as pytorch_networks

PAD = 0  # the label of a token that is no target


def resident(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The fastest loop we can write by hand: one model that stays, its weights copied in, tensors sliced in memory."""
    return averaging(workload, task, Steps, threads_of_each=setting.cores, device=place(setting.device))


def threads(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """The same in as many Python threads as cores or clients, a share of the cohort and of the cores for each."""
    number = min(setting.cores, task.cohorts.shape[1])
    return averaging(workload, task, Steps, number, threads_of_each=setting.cores // number)


def place(device: str) -> str:
    """Returns PyTorch's name of a device. On a GPU, float32 products are TF32, as in JAX."""
    if device == "cpu":
        return "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    return "cuda"


class Steps:
    """Steps of SGD with momentum on one network, in place; made once for each thread."""

    def __init__(self, network: torch.nn.Module, workload: Workload) -> None:
        self.network, self.task, self.training = network, workload.task, workload.training
        self.weights, self.momenta = list(network.parameters()), None

    def restart(self) -> None:
        """Forgets the momentum."""
        self.momenta = None

    def __call__(self, x: torch.Tensor, y: torch.Tensor, towards: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Takes a step on a batch and returns its loss, which is read later so that no step waits for a GPU.

        ``towards``: weights to which the gradient pulls, by the difference (Ditto with strength 1).
        """
        loss = loss_of(self.task, self.network(x), y)
        gradients = torch.autograd.grad(loss, self.weights)
        if towards is not None:
            gradients = torch._foreach_add(gradients, torch._foreach_sub(self.weights, towards))
        self.momenta = descend(self.weights, gradients, self.momenta, self.training)
        return loss.detach()


def averaging(
    workload: Workload,
    task: Task,
    make_steps: Callable[[torch.nn.Module, Workload], Steps],
    threads: int = 1,
    threads_of_each: int = 1,
    device: str = "cpu",
) -> Iterator[Round]:
    """Yields rounds of the workload's method, with a share of the cohort in each of several Python threads."""
    torch.set_num_threads(threads_of_each)
    steps = [make_steps(network(workload, task).to(device), workload) for _ in range(threads)]
    server = [tensor.detach().clone() for tensor in pytorch_networks.tensors(steps[0].network)]
    parts = [torch.from_numpy(part).to(device) for part in task.parts]
    data = [tensor.to(device) for tensor in tensors(task.data)]
    generators = [torch.Generator(device).manual_seed(SEED + thread) for thread in range(threads)]
    own = [_Own(workload, server) for _ in task.parts]
    with ThreadPoolExecutor(threads) as pool:
        for cohort in itertools.cycle(task.cohorts):
            clients = sorted(((parts[i], own[i]) for i in cohort), key=lambda client: len(client[0]))
            deal = [clients[thread::threads] for thread in range(threads)]
            done = pool.map(lambda *thread: _run_part(server, data, workload, *thread), steps, deal, generators)
            sums, counts = zip(*done, strict=True)
            for tensor, *summands in zip(server, *sums, strict=True):
                tensor.copy_(sum(summands) / sum(workload.weight(len(rows)) for rows, _ in clients))
            yield report(itertools.chain(*counts), f"{threads} x {threads_of_each} threads")


class _Own:
    """What a client keeps: nothing, its head (FedPer) or a model (Ditto), which start at the server's."""

    def __init__(self, workload, server):
        self.kept = {"fedavg": slice(0), "fedper": slice(-2, None), "ditto": slice(None)}[workload.method]
        self.is_extra, self.tensors = workload.method == "ditto", [tensor.clone() for tensor in server[self.kept]]

    def train(self, server, steps, data, rows, generator):
        """Trains the network, which has the server's weights, in place; returns the report."""
        current = pytorch_networks.tensors(steps.network)[self.kept]
        _copy(current, self.tensors)
        done = train(steps, *data, rows, generator, towards=server if self.is_extra else None)
        _copy(self.tensors, current)
        _copy(current, server[self.kept])
        return train(steps, *data, rows, generator) if self.is_extra else done


@torch.no_grad()
def _copy(to, tensors):
    if to:
        torch._foreach_copy_(to, tensors)


def _run_part(server, data, workload, steps, clients, generator):
    """Returns the weighted sum of these clients' models, and a report of each."""
    current = pytorch_networks.tensors(steps.network)
    total, counts = [torch.zeros_like(tensor) for tensor in server], []
    for rows, own in clients:
        _copy(current, server)
        counts.append(own.train(server, steps, data, rows, generator))
        with torch.no_grad():
            torch._foreach_add_(total, current, alpha=workload.weight(len(rows)))
    return total, counts


def train(
    steps: Steps,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    rows: torch.Tensor,
    generator: torch.Generator | None = None,
    towards: list[torch.Tensor] | None = None,
) -> tuple[float, int, int]:
    """One client's local training in place: its mean loss over what it trained on, the number of samples, and steps."""
    training, done = steps.training, []
    steps.restart()
    for _ in range(training.epochs):
        order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
        batches = (data[order].split(training.batch_size) for data in (inputs, labels))
        done += [(steps(x, y, towards), targets(steps.task, y), len(y)) for x, y in zip(*batches, strict=True)]
    losses, *counts = zip(*done, strict=True)
    return summary(zip(torch.stack(losses).tolist(), *counts, strict=True))


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


def tensors(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels. Images are normalised, [examples, channels, height, width], with channels last in memory."""
    inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels).long()
    if inputs.ndim < 4:
        return inputs.long(), labels
    return ((inputs.float() - data.mean) / data.std).permute(0, 3, 1, 2), labels


def loss_of(task: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of a batch in the task of that name, over ``targets``."""
    if task == "next_word":
        return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=PAD)
    if task == "multi_label":
        return binary_cross_entropy_with_logits(outputs, labels.float())
    return cross_entropy(outputs, labels)


def targets(task: str, labels: torch.Tensor) -> torch.Tensor | int:
    """Returns over how many a batch's loss is a mean: examples, or tokens with a target, which are on the device."""
    return (labels != PAD).sum() if task == "next_word" else len(labels)


def summary(steps: Iterator[tuple[float, torch.Tensor | int, int]]) -> tuple[float, int, int]:
    """Returns the mean loss, samples and number of steps, each of which has a loss, ``targets`` and samples."""
    losses, counts, samples = zip(*((loss, int(count), size) for loss, count, size in steps), strict=True)
    return sum(map(float.__mul__, losses, map(float, counts))) / sum(counts), sum(samples), len(losses)


def report(clients: Iterator[tuple[float, int, int]], layout: str) -> Round:
    """Returns the report of a round from the ``summary`` of each client."""
    losses, samples, steps = zip(*clients, strict=True)
    return Round(losses, samples, steps, processed=sum(samples), layout=layout)
