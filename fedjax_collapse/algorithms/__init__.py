"""Federated averaging, and the methods that change its gradients, uploads or server; one a file."""

from fedjax_collapse import rooms
from fedjax_collapse.algorithms.fedavg import FedAvg as FedAvg
from fedjax_collapse.algorithms.feddc import FedDC as FedDC
from fedjax_collapse.algorithms.feddyn import FedDyn as FedDyn
from fedjax_collapse.algorithms.fednova import FedNova as FedNova
from fedjax_collapse.algorithms.recalibrate import Recalibrate as Recalibrate
from fedjax_collapse.algorithms.scaffold import Scaffold as Scaffold
from fedjax_collapse.method import Method


def __getattr__(name: str) -> type[Method]:
    """Every other method that has a file here."""
    return rooms.class_named(__name__, name)
