"""ResNet-50 for small images."""

from fedjax_collapse.nn.networks.residual import Bottleneck, ResidualNetwork
from fedjax_collapse.schema.options import Count


class ResNet50(ResidualNetwork):
    """Bottleneck blocks (3, 4, 6, 3) after a 3x3 convolution: 2,048 features.

    He et al. (CVPR 2016), the stride in the 3x3 convolution ("v1.5"), without max-pool. MOON's has
    ``kernel_init="kaiming_fan_out"``, ``projector="moon"``; FedUV's has ``stem_size=7``, ``stem_stride=2``,
    ``projector="feduv"``, ``projector_dim=2048``.
    """

    blocks: tuple[Count, ...] = (3, 4, 6, 3)

    block = Bottleneck
