"""Federated learning for the study of dimensional collapse: vectorised clients, compiled rounds, composable methods."""

from fedjax_collapse import engine as engine
from fedjax_collapse import losses as losses
from fedjax_collapse import methods as methods
from fedjax_collapse import nn as nn
from fedjax_collapse.core import compiler_bugs as _compiler_bugs
from fedjax_collapse.core.options import option as option
from fedjax_collapse.core.records import Batch as Batch
from fedjax_collapse.core.records import Outputs as Outputs
from fedjax_collapse.core.records import UserError as UserError
from fedjax_collapse.core.records import Variables as Variables
from fedjax_collapse.data import Domains as Domains
from fedjax_collapse.data import Federation as Federation
from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.engine import Participation as Participation
from fedjax_collapse.losses import masked_mean as masked_mean
from fedjax_collapse.methods import MOON as MOON
from fedjax_collapse.methods import DeCov as DeCov
from fedjax_collapse.methods import FedDC as FedDC
from fedjax_collapse.methods import FedDecorr as FedDecorr
from fedjax_collapse.methods import FedDyn as FedDyn
from fedjax_collapse.methods import FedMR as FedMR
from fedjax_collapse.methods import FedNova as FedNova
from fedjax_collapse.methods import FedProc as FedProc
from fedjax_collapse.methods import FedProx as FedProx
from fedjax_collapse.methods import FedUV as FedUV
from fedjax_collapse.methods import FinishView as FinishView
from fedjax_collapse.methods import GradientView as GradientView
from fedjax_collapse.methods import LocalView as LocalView
from fedjax_collapse.methods import Method as Method
from fedjax_collapse.methods import Recalibrate as Recalibrate
from fedjax_collapse.methods import Regularizer as Regularizer
from fedjax_collapse.methods import RoundView as RoundView
from fedjax_collapse.methods import Scaffold as Scaffold
from fedjax_collapse.methods import StructuredDeCov as StructuredDeCov
from fedjax_collapse.methods import Term as Term
from fedjax_collapse.methods import VICReg as VICReg
from fedjax_collapse.nn.model import Model as Model
from fedjax_collapse.nn.task import CLASSIFICATION as CLASSIFICATION
from fedjax_collapse.nn.task import REGRESSION as REGRESSION
from fedjax_collapse.nn.task import Task as Task
from fedjax_collapse.simulation.divergence import Diverged as Diverged
from fedjax_collapse.simulation.simulation import Result as Result
from fedjax_collapse.simulation.simulation import simulate as simulate
from fedjax_collapse.training.algorithm import FedAvg as FedAvg
from fedjax_collapse.training.local_training import LocalTraining as LocalTraining
from fedjax_collapse.training.local_training import Phase as Phase

_compiler_bugs.guard()  # before any use of a device


def __getattr__(name: str) -> type[Method]:
    """Returns a method of ``methods/`` that is not imported above."""
    return getattr(methods, name)
