"""Classifiers of features, one per file; they are the part ``head`` of a network.

A head is a Linen module that is created as ``Head(num_classes, name="head")`` and called with the features [batch, d];
it returns logits [batch, classes]. If it takes them, it is also given ``mask`` [batch] and ``train``. Custom heads are
passed to a network in the same way.
"""

from fedjax_collapse.nn.heads.classifier import classify as classify
from fedjax_collapse.nn.heads.classifier import orthogonal_head as orthogonal_head
from fedjax_collapse.nn.heads.etf import ETF as ETF
from fedjax_collapse.nn.heads.linear import Linear as Linear
from fedjax_collapse.nn.heads.quadratic import Quadratic as Quadratic
from fedjax_collapse.nn.heads.shifted import Shifted as Shifted
from fedjax_collapse.nn.heads.siamese import Siamese as Siamese
from fedjax_collapse.nn.heads.simplex import Simplex as Simplex
from fedjax_collapse.nn.heads.simplex import simplex_frame as simplex_frame
from fedjax_collapse.nn.heads.two_heads import TwoHeads as TwoHeads
