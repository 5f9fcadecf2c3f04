"""ResNet-32 for CIFAR."""

from fedjax_collapse.nn.networks.resnet20 import ResNet20
from fedjax_collapse.schema.options import Count


class ResNet32(ResNet20):
    """Basic blocks (5, 5, 5) of 16, 32 and 64 channels with shortcuts that have no parameters: 64 features.

    He et al. (CVPR 2016), section 4.2, as FedDecorr trains it.
    """

    blocks: tuple[Count, ...] = (5, 5, 5)
