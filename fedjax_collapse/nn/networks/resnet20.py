"""ResNet-20 for CIFAR."""

from fedjax_collapse.nn.networks.residual import KernelInit, ResidualNetwork
from fedjax_collapse.schema.options import Count


class ResNet20(ResidualNetwork):
    """Basic blocks (3, 3, 3) of 16, 32 and 64 channels with shortcuts that have no parameters: 64 features.

    He et al. (CVPR 2016), section 4.2, as FedDecorr trains it.
    """

    blocks: tuple[Count, ...] = (3, 3, 3)
    strides: tuple[Count, ...] = (1, 2, 2)
    kernel_init: KernelInit = "kaiming_fan_in"

    width = 16
    padded_shortcut = True
