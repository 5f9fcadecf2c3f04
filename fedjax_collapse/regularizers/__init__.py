"""Published regularizers, one a file; any number of them goes with any algorithm."""

from fedjax_collapse import rooms
from fedjax_collapse.method import Method
from fedjax_collapse.method import Regularizer as Regularizer
from fedjax_collapse.method import Term as Term
from fedjax_collapse.options import option as option
from fedjax_collapse.regularizers.decov import DeCov as DeCov
from fedjax_collapse.regularizers.feddecorr import FedDecorr as FedDecorr
from fedjax_collapse.regularizers.fedmr import FedMR as FedMR
from fedjax_collapse.regularizers.fedproc import FedProc as FedProc
from fedjax_collapse.regularizers.fedprox import FedProx as FedProx
from fedjax_collapse.regularizers.feduv import FedUV as FedUV
from fedjax_collapse.regularizers.moon import MOON as MOON
from fedjax_collapse.regularizers.structured_decov import StructuredDeCov as StructuredDeCov
from fedjax_collapse.regularizers.vicreg import VICReg as VICReg


def __getattr__(name: str) -> type[Method]:
    """Every other method that has a file here."""
    return rooms.class_named(__name__, name)
