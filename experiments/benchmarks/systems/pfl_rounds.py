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

from experiments.benchmarks import MANY, Round, Setting, rounds_of
from experiments.benchmarks.systems import pytorch_loops
from experiments.benchmarks.workloads import SEED, Task, Workload


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of its ``FederatedAveraging``, weighted as in the workload."""
    epochs, batch_size, learning_rate, momentum = workload.training

    def train(report):
        torch.set_num_threads(setting.cores)
        np.random.seed(SEED)
        network = _Recorded(pytorch_loops.network(workload, task), workload.task)
        whole = torch.optim.SGD(network.parameters(), 1.0)
        model = PyTorchModel(network, lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum), whole)
        inputs, labels = (x.to(pytorch_loops.place(setting.device)) for x in pytorch_loops.tensors(task.data))
        datasets = [Dataset((inputs[rows], labels[rows]), user_id=str(i)) for i, rows in enumerate(task.parts)]
        order = itertools.cycle(task.cohorts.ravel())
        clients = FederatedDataset(datasets.__getitem__, lambda: next(order))
        weighting = [WeightByDatapoints()] if workload.weighting == "size" else []
        cohorts = dict(train_cohort_size=task.cohorts.shape[1], val_cohort_size=None)
        FederatedAveraging().run(
            NNAlgorithmParams(central_num_iterations=MANY, evaluation_frequency=MANY, **cohorts),
            SimulatedBackend(clients, clients, postprocessors=weighting),
            model,
            NNTrainHyperParams(local_num_epochs=epochs, local_learning_rate=learning_rate, local_batch_size=batch_size),
            NNEvalHyperParams(local_batch_size=None),
            [_Report(network, workload, task, report, f"{setting.cores} threads")],
        )

    return rounds_of(train)


class _Recorded(torch.nn.Module):
    """A network with the methods that pfl requires; records the loss, targets and samples of its steps."""

    def __init__(self, network, task):
        super().__init__()
        self.network, self.task, self.steps = network, task, []

    def loss(self, inputs, labels):
        loss = pytorch_loops.loss_of(self.task, self.network(inputs), labels)
        self.steps.append((loss.detach(), pytorch_loops.targets(self.task, labels), len(labels)))
        return loss

    def metrics(self, inputs, labels):
        return {}  # it would be asked before and after each client's training in the first round


class _Report(TrainingProcessCallback):
    def __init__(self, network, workload, task, report, layout):
        training = workload.training
        self.steps = [training.epochs * -(-len(rows) // training.batch_size) for rows in task.parts]  # of each client
        self.cohorts = itertools.cycle(task.cohorts)
        self.network, self.report, self.layout = network, report, layout

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        losses, *counts = zip(*self.network.steps, strict=True)  # read here, so that no step waits for a GPU
        done = iter(list(zip(torch.stack(losses).tolist(), *counts, strict=True)))
        self.network.steps.clear()
        clients = [list(itertools.islice(done, self.steps[client])) for client in next(self.cohorts)]
        self.report(pytorch_loops.report(map(pytorch_loops.summary, clients), self.layout))
        return False, Metrics()
