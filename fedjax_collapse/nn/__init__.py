"""Networks, one a file: ordinary Linen modules called as ``module(images, mask, train)`` and returning ``Outputs``."""

from fedjax_collapse.nn.mlp import MLP as MLP
from fedjax_collapse.nn.small_cnn import SmallCNN as SmallCNN
