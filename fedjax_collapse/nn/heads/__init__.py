"""Classifiers on the features, one kind a file: the part of a network that is called ``head``.

A head is a Linen module that is made as ``Head(num_classes, name="head")`` and called with the features [batch, d]; it
returns logits [batch, classes]. One's own is given to a network like these.
"""

from fedjax_collapse.nn.heads.classifier import classify as classify
from fedjax_collapse.nn.heads.classifier import orthogonal_head as orthogonal_head
from fedjax_collapse.nn.heads.etf import ETF as ETF
from fedjax_collapse.nn.heads.linear import Linear as Linear
from fedjax_collapse.nn.heads.simplex import Simplex as Simplex
from fedjax_collapse.nn.heads.simplex import simplex_frame as simplex_frame
