"""PFLlib's convolutional network, its ``-m CNN``."""

from fedjax_collapse.nn.networks.moon_cnn import MOONCNN
from fedjax_collapse.schema.options import Count


class PFLlibCNN(MOONCNN):
    """Two 5x5 convolutions without padding, 32 and 64 channels, each with ReLU and a 2x2 max-pool, then dense 512.

    This is the network of the first experiments with federated averaging, but without padding: 582,026 parameters for
    MNIST.
    """

    channels: tuple[Count, ...] = (32, 64)
    hidden: tuple[Count, ...] = (512,)
