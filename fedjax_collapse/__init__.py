"""Federated learning for the study of dimensional collapse: vectorised clients, compiled rounds, composable methods."""

from fedjax_collapse import engine as engine
from fedjax_collapse import losses as losses
from fedjax_collapse import nn as nn
from fedjax_collapse.algorithms import FedAvg as FedAvg
from fedjax_collapse.algorithms import FedDC as FedDC
from fedjax_collapse.algorithms import FedDyn as FedDyn
from fedjax_collapse.algorithms import FedNova as FedNova
from fedjax_collapse.algorithms import LocalTraining as LocalTraining
from fedjax_collapse.algorithms import Scaffold as Scaffold
from fedjax_collapse.data import Domains as Domains
from fedjax_collapse.data import Federation as Federation
from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.records import Model as Model
from fedjax_collapse.records import UserError as UserError
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
