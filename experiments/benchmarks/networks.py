"""The networks of the workloads, each written for both sides with its layers in the same order."""

from typing import Any

CLASSES = 10
IDS, LABELS = 10_004, 17  # of tokens, and of images with several labels
_FLAIR = dict(stem_size=7, stem_stride=2, norm="group")  # frozen BatchNorm, which pfl-research trains, is not offered


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
        "pfl_transformer": nn.PflTransformer(IDS, dropout=0.0),
        "flair_resnet18": nn.ResNet18(LABELS, **_FLAIR),
    }[name]


def pytorch(name: str, input_shape: tuple[int, ...]) -> Any:
    """The network as a ``torch.nn.Module``, in training mode."""
    from experiments.benchmarks import pytorch_networks

    own = {"cnn": _cnn, "two_conv_cnn": _two_conv_cnn}
    if name in own:
        return own[name](input_shape)
    if name == "pfl_transformer":
        return pytorch_networks.Transformer(IDS)
    if name == "flair_resnet18":
        return pytorch_networks.build("resnet18", LABELS, input_shape, **_FLAIR)
    return pytorch_networks.build(name, CLASSES, input_shape)


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
