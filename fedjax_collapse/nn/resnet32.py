"""ResNet-32 for CIFAR."""

from fedjax_collapse.nn.residual import ResidualNetwork


class ResNet32(ResidualNetwork):
    """Basic blocks (5, 5, 5) of 16, 32 and 64 channels with shortcuts that have no parameters: 64 features.

    He et al. (CVPR 2016), section 4.2, as FedDecorr trains it.
    """

    blocks: tuple[int, ...] = (5, 5, 5)
    strides: tuple[int, ...] = (1, 2, 2)
    kernel_init: str = "kaiming_fan_in"

    width = 16
    padded_shortcut = True
