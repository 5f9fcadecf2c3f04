"""Published methods, one per file. ``FedAvg`` takes any number of them; ``base.py`` defines their interface."""

import sys

from fedjax_collapse.core import discovery
from fedjax_collapse.core.options import option as option
from fedjax_collapse.methods.base import FinishView as FinishView
from fedjax_collapse.methods.base import GradientView as GradientView
from fedjax_collapse.methods.base import LocalView as LocalView
from fedjax_collapse.methods.base import Method as Method
from fedjax_collapse.methods.base import Regularizer as Regularizer
from fedjax_collapse.methods.base import RoundView as RoundView
from fedjax_collapse.methods.base import Term as Term
from fedjax_collapse.methods.decov import DeCov as DeCov
from fedjax_collapse.methods.feddc import FedDC as FedDC
from fedjax_collapse.methods.feddecorr import FedDecorr as FedDecorr
from fedjax_collapse.methods.feddyn import FedDyn as FedDyn
from fedjax_collapse.methods.fedmr import FedMR as FedMR
from fedjax_collapse.methods.fednova import FedNova as FedNova
from fedjax_collapse.methods.fedproc import FedProc as FedProc
from fedjax_collapse.methods.fedprox import FedProx as FedProx
from fedjax_collapse.methods.feduv import FedUV as FedUV
from fedjax_collapse.methods.moon import MOON as MOON
from fedjax_collapse.methods.recalibrate import Recalibrate as Recalibrate
from fedjax_collapse.methods.scaffold import Scaffold as Scaffold
from fedjax_collapse.methods.structured_decov import StructuredDeCov as StructuredDeCov
from fedjax_collapse.methods.vicreg import VICReg as VICReg


def __getattr__(name: str) -> type[Method]:
    """Returns a method of this package that is not imported above."""
    return discovery.class_named(sys.modules[__name__], name)
