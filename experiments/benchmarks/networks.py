"""The networks of the workloads, each written for both sides with its layers in the same order."""

from typing import Any

CLASSES = 10
CLASS_NAMES = tuple(map(str, range(CLASSES)))  # also of those that a small sample lacks


def linen(name: str) -> Any:
    """The network as a Linen module."""
    from experiments.benchmarks.two_conv_cnn import TwoConvCNN
    from fedjax_collapse import nn

    return {
        "mlp": nn.MLP(CLASSES, hidden=(128, 128)),
        "cnn": nn.SmallCNN(CLASSES, channels=(32, 64, 64), norm="none"),
        "pfllib_cnn": nn.PFLlibCNN(CLASSES),
        "two_conv_cnn": TwoConvCNN(CLASSES),
        "resnet18": nn.ResNet18(CLASSES),
        "mobilenet_v2": nn.MobileNetV2(CLASSES),
    }[name]


def pytorch(name: str, image_shape: tuple[int, int, int]) -> Any:
    """The network as a ``torch.nn.Module``, in training mode."""
    from experiments.benchmarks import pytorch_networks

    own = {"cnn": _cnn, "two_conv_cnn": _two_conv_cnn}
    if name in own:
        return own[name](image_shape)
    return pytorch_networks.build(name, CLASSES, image_shape)


def _cnn(image_shape):
    from torch import nn

    def block(inputs, outputs):
        return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()

    pool = nn.MaxPool2d(2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    return nn.Sequential(*block(image_shape[2], 32), pool, *block(32, 64), pool, *block(64, 64), *head)


def _two_conv_cnn(image_shape):
    from torch import nn

    from experiments.benchmarks.pytorch_layers import Flatten

    height, width, channels = image_shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    convolutions = nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*convolutions, Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, CLASSES))
