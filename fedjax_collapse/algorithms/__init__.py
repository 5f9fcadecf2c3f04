"""Federated algorithms: one file for each that is not just an argument of federated averaging."""

from fedjax_collapse.algorithms.base import Algorithm as Algorithm
from fedjax_collapse.algorithms.fedavg import FedAvg as FedAvg
from fedjax_collapse.algorithms.feddc import FedDC as FedDC
from fedjax_collapse.algorithms.feddyn import FedDyn as FedDyn
from fedjax_collapse.algorithms.fednova import FedNova as FedNova
from fedjax_collapse.algorithms.local_training import LocalTraining as LocalTraining
from fedjax_collapse.algorithms.scaffold import Scaffold as Scaffold
