"""Published regularizers, one a file; any number of them goes with any algorithm."""

from fedjax_collapse.regularizers.base import Regularizer as Regularizer
from fedjax_collapse.regularizers.base import Term as Term
from fedjax_collapse.regularizers.base import option as option
from fedjax_collapse.regularizers.feddecorr import FedDecorr as FedDecorr
