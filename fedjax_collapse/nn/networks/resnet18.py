"""ResNet-18 for small images."""

from fedjax_collapse.nn.networks.residual import ResidualNetwork


class ResNet18(ResidualNetwork):
    """Basic blocks (2, 2, 2, 2) after a 3x3 convolution: 512 features.

    He et al. (CVPR 2016), with the first layer for CIFAR. The default is FedDecorr's. FedMR's has
    ``kernel_init="kaiming_fan_out"``, and MOON's also ``projector="moon"``. FedUV's has ``strides=(2, 2, 2, 2)``,
    ``projector="feduv"``, ``projector_dim=512``.
    """
