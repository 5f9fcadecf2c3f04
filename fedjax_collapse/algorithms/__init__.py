"""Federated algorithms: one file for each that is not just an argument of federated averaging."""

from fedjax_collapse.algorithms.base import Algorithm as Algorithm
from fedjax_collapse.algorithms.fedavg import FedAvg as FedAvg
from fedjax_collapse.algorithms.local_training import LocalTraining as LocalTraining
