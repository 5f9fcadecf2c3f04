"""The system ``pfl``: pfl-research's simulation, in one process with all cores.

It averages the parameters of BatchNorm, but not the running statistics, which training does not use. A client sees its
batches in the same order in every epoch and round: pfl does not shuffle.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from experiments.benchmarks import Round, Setting, pytorch_loops
from experiments.benchmarks.callbacks import MANY, rounds_of
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import SEED, Workload


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of its ``FederatedAveraging``, weighted as in the workload."""

    def train(report):
        torch.set_num_threads(setting.cores)
        np.random.seed(SEED)
        network = _Recorded(pytorch_loops.network(workload, task), workload.task)
        training = workload.training
        model = PyTorchModel(
            network,
            lambda parameters, lr: torch.optim.SGD(parameters, lr, training.momentum),
            torch.optim.SGD(network.parameters(), 1.0),
        )
        clients = _clients(task, pytorch_loops.place(setting.device))
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=MANY,
                evaluation_frequency=MANY,
                train_cohort_size=task.cohorts.shape[1],
                val_cohort_size=None,
            ),
            SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()] * (workload.weighting == "size")),
            model,
            NNTrainHyperParams(
                local_num_epochs=training.epochs,
                local_learning_rate=training.learning_rate,
                local_batch_size=training.batch_size,
            ),
            NNEvalHyperParams(local_batch_size=None),
            [_Report(network, workload, task, report, f"{setting.cores} threads")],
        )

    return rounds_of(train)


def _clients(task, device):
    inputs, labels = (tensor.to(device) for tensor in pytorch_loops.tensors(task))
    datasets = [Dataset((inputs[rows], labels[rows]), user_id=str(i)) for i, rows in enumerate(task.parts)]
    order = itertools.cycle(task.cohorts.ravel())
    return FederatedDataset(datasets.__getitem__, lambda: next(order))


class _Recorded(torch.nn.Module):
    """A network with the methods that pfl requires; records its steps: loss, over how many, and samples."""

    def __init__(self, network, task):
        super().__init__()
        self.network, self.task, self.steps = network, task, []

    def loss(self, inputs, labels):
        loss, count = pytorch_loops.loss_and_count(self.task, self.network(inputs), labels)
        self.steps.append((loss.detach(), count, len(labels)))  # read at the end, so that no step waits for a GPU
        return loss

    def metrics(self, inputs, labels):
        return {}  # it would be asked before and after each client's training in the first round


class _Report(TrainingProcessCallback):
    def __init__(self, network, workload, task, report, layout):
        training, sizes = workload.training, [len(rows) for rows in task.parts]
        self.steps = [training.epochs * -(-size // training.batch_size) for size in sizes]  # of each client
        self.cohorts = itertools.cycle(task.cohorts)
        self.network, self.report, self.layout = network, report, layout

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        losses, *counts = zip(*self.network.steps, strict=True)
        done = iter(zip(torch.stack(losses).tolist(), *counts, strict=True))
        steps = [self.steps[client] for client in next(self.cohorts)]
        losses, counts, samples = zip(*(np.transpose(list(itertools.islice(done, n))) for n in steps), strict=True)
        self.network.steps.clear()
        losses = [np.average(*of_client) for of_client in zip(losses, [None] * len(counts), counts, strict=True)]
        samples = [int(of_client.sum()) for of_client in samples]
        self.report(Round(losses, samples, steps, processed=sum(samples), layout=self.layout))
        return False, Metrics()
