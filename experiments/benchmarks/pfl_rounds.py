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
from torch.nn.functional import cross_entropy

from experiments.benchmarks import Round, Setting, pytorch_loops
from experiments.benchmarks.callbacks import MANY, rounds_of
from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import SEED, Workload


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of its ``FederatedAveraging``, weighted by examples."""

    def train(report):
        torch.set_num_threads(setting.cores)
        np.random.seed(SEED)
        network = _Recorded(pytorch_loops.network(workload, task))
        training = workload.training
        model = PyTorchModel(
            network,
            lambda parameters, lr: torch.optim.SGD(parameters, lr, training.momentum),
            torch.optim.SGD(network.parameters(), 1.0),
        )
        clients = _clients(task)
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=MANY,
                evaluation_frequency=MANY,
                train_cohort_size=task.cohorts.shape[1],
                val_cohort_size=None,
            ),
            SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
            model,
            NNTrainHyperParams(
                local_num_epochs=training.epochs,
                local_learning_rate=training.learning_rate,
                local_batch_size=training.batch_size,
            ),
            NNEvalHyperParams(local_batch_size=None),
            [_Report(network, report, f"{setting.cores} threads")],
        )

    return rounds_of(train)


def _clients(task):
    images, labels = pytorch_loops.tensors(task)
    datasets = [Dataset((images[rows], labels[rows]), user_id=str(i)) for i, rows in enumerate(task.parts)]
    order = itertools.cycle(task.cohorts.ravel())
    return FederatedDataset(datasets.__getitem__, lambda: next(order))


class _Recorded(torch.nn.Module):
    """A network with the methods that pfl requires; counts its steps."""

    def __init__(self, network):
        super().__init__()
        self.network, self.steps = network, []

    def loss(self, images, labels):
        loss = cross_entropy(self.network(images), labels)
        self.steps.append((loss.item(), len(labels), 1))
        return loss

    def metrics(self, images, labels):
        return {}  # it would be asked before and after each client's training in the first round


class _Report(TrainingProcessCallback):
    def __init__(self, network, report, layout):
        self.network, self.report, self.layout = network, report, layout

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        losses, samples, steps = zip(*self.network.steps, strict=True)
        self.network.steps.clear()
        self.report(Round(losses, samples, steps, processed=sum(samples), layout=self.layout))
        return False, Metrics()
