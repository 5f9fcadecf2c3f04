"""Federated learning for the study of dimensional collapse: vectorised clients, compiled rounds, composable methods."""

from fedjax_collapse import engine as engine
from fedjax_collapse import losses as losses
from fedjax_collapse import methods as methods
from fedjax_collapse import nn as nn
from fedjax_collapse.config.loading import LoadedRun as LoadedRun
from fedjax_collapse.config.loading import load_run as load_run
from fedjax_collapse.core import _jax_compat as _jax_compat
from fedjax_collapse.core.records import Batch as Batch
from fedjax_collapse.core.records import Outputs as Outputs
from fedjax_collapse.core.records import UserError as UserError
from fedjax_collapse.core.records import Variables as Variables
from fedjax_collapse.core.weight_files import load_weights as load_weights
from fedjax_collapse.core.weight_files import save_weights as save_weights
from fedjax_collapse.data import Domains as Domains
from fedjax_collapse.data import Federation as Federation
from fedjax_collapse.data import OwnSplit as OwnSplit
from fedjax_collapse.data import partition as partition
from fedjax_collapse.data import sources as sources
from fedjax_collapse.engine import Participation as Participation
from fedjax_collapse.losses import masked_mean as masked_mean
from fedjax_collapse.methods import *  # noqa: F403
from fedjax_collapse.nn.adapters import LoRA as LoRA
from fedjax_collapse.nn.interchange.pretrained import load_pretrained as load_pretrained
from fedjax_collapse.nn.model import Model as Model
from fedjax_collapse.nn.task import CLASSIFICATION as CLASSIFICATION
from fedjax_collapse.nn.task import MULTI_LABEL as MULTI_LABEL
from fedjax_collapse.nn.task import NEXT_CHARACTER as NEXT_CHARACTER
from fedjax_collapse.nn.task import REGRESSION as REGRESSION
from fedjax_collapse.nn.task import SELF_SUPERVISED as SELF_SUPERVISED
from fedjax_collapse.nn.task import Task as Task
from fedjax_collapse.nn.task import multi_label as multi_label
from fedjax_collapse.nn.task import next_word as next_word
from fedjax_collapse.nn.task import self_supervised as self_supervised
from fedjax_collapse.optim.local_training import LocalTraining as LocalTraining
from fedjax_collapse.optim.local_training import Phase as Phase
from fedjax_collapse.results.script import study as study
from fedjax_collapse.run.divergence import Diverged as Diverged
from fedjax_collapse.run.own_tests import Finetuning as Finetuning
from fedjax_collapse.run.privacy.guarantee import Privacy as Privacy
from fedjax_collapse.run.simulation import Result as Result
from fedjax_collapse.run.simulation import simulate as simulate
from fedjax_collapse.schema.options import option as option
from fedjax_collapse.training.algorithm import FedAvg as FedAvg

_jax_compat.guard()  # before any use of a device
