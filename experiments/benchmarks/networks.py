"""The networks of the workloads, each written for both sides with its layers in the same order."""

from typing import Any

from experiments.benchmarks.systems.two_conv_cnn import TwoConvCNN
from fedjax_collapse.config.keys import NETWORKS

CLASSES = 10
IDS, LABELS = 10_004, 17  # of tokens, and of images with several labels
_FLAIR = dict(stem_size=7, stem_stride=2, norm="group")  # frozen BatchNorm, which pfl-research trains, is not offered
_NAMED = {  # network, outputs and options; other names are networks of ``fedjax_collapse.nn`` with ten classes
    "cnn": ("small_cnn", CLASSES, dict(channels=(32, 64, 64), norm="none")),
    "pfl_transformer": ("pfl_transformer", IDS, dict(dropout=0.0)),
    "flair_resnet18": ("resnet18", LABELS, _FLAIR),
}


def linen(name: str, **options: Any) -> Any:
    """Returns the network as a Linen module."""
    kind, outputs, own = _NAMED.get(name, (name, CLASSES, {}))
    module = TwoConvCNN if kind == "two_conv_cnn" else NETWORKS[kind]
    return module(outputs, **own, **options)


def pytorch(name: str, input_shape: tuple[int, ...]) -> Any:
    """Returns the network as a ``torch.nn.Module``, in training mode."""
    from torch import nn

    from fedjax_collapse.nn.interchange import torch_layers, torch_networks

    kind, outputs, own = _NAMED.get(name, (name, CLASSES, {}))
    if kind == "pfl_transformer":
        return torch_networks.Transformer(outputs)
    if kind != "two_conv_cnn":
        return torch_networks.build(kind, outputs, input_shape, **own)
    height, width, channels = input_shape
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    convolutions = nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
    dense = nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, outputs)
    return nn.Sequential(*convolutions, torch_layers.flatten(), *dense)
