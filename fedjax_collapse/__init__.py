"""Federated learning for the study of dimensional collapse: vectorised clients, compiled rounds, composable methods."""

from fedjax_collapse import compiler_bugs as _compiler_bugs
from fedjax_collapse import engine as engine
from fedjax_collapse import losses as losses
from fedjax_collapse import nn as nn
from fedjax_collapse import rooms as _rooms
from fedjax_collapse.algorithms import FedAvg as FedAvg
from fedjax_collapse.algorithms import FedDC as FedDC
from fedjax_collapse.algorithms import FedDyn as FedDyn
from fedjax_collapse.algorithms import FedNova as FedNova
from fedjax_collapse.algorithms import Recalibrate as Recalibrate
from fedjax_collapse.algorithms import Scaffold as Scaffold
from fedjax_collapse.data import Domains as Domains
from fedjax_collapse.data import Federation as Federation
from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.divergence import Diverged as Diverged
from fedjax_collapse.engine import Participation as Participation
from fedjax_collapse.local_training import LocalTraining as LocalTraining
from fedjax_collapse.local_training import Phase as Phase
from fedjax_collapse.losses import masked_mean as masked_mean
from fedjax_collapse.method import FinishView as FinishView
from fedjax_collapse.method import GradientView as GradientView
from fedjax_collapse.method import LocalView as LocalView
from fedjax_collapse.method import Method as Method
from fedjax_collapse.method import Regularizer as Regularizer
from fedjax_collapse.method import RoundView as RoundView
from fedjax_collapse.method import Term as Term
from fedjax_collapse.model import Model as Model
from fedjax_collapse.options import option as option
from fedjax_collapse.records import Batch as Batch
from fedjax_collapse.records import Outputs as Outputs
from fedjax_collapse.records import UserError as UserError
from fedjax_collapse.records import Variables as Variables
from fedjax_collapse.regularizers import MOON as MOON
from fedjax_collapse.regularizers import DeCov as DeCov
from fedjax_collapse.regularizers import FedDecorr as FedDecorr
from fedjax_collapse.regularizers import FedMR as FedMR
from fedjax_collapse.regularizers import FedProc as FedProc
from fedjax_collapse.regularizers import FedProx as FedProx
from fedjax_collapse.regularizers import FedUV as FedUV
from fedjax_collapse.regularizers import StructuredDeCov as StructuredDeCov
from fedjax_collapse.regularizers import VICReg as VICReg
from fedjax_collapse.simulation import Result as Result
from fedjax_collapse.simulation import simulate as simulate
from fedjax_collapse.task import CLASSIFICATION as CLASSIFICATION
from fedjax_collapse.task import REGRESSION as REGRESSION
from fedjax_collapse.task import Task as Task

_compiler_bugs.guard()  # before anything uses a device


def __getattr__(name: str) -> type[Method]:
    """Every other method that has a file in its room."""
    return _rooms.class_named(__name__, name, ("algorithms", "regularizers", "uploads"))
