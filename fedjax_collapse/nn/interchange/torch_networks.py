"""The networks of ``fedjax_collapse.nn`` in ``torch.nn`` layers, for the benchmark and as references of the tests.

They have the same options, and their layers in the same order, so that weights are copied by position.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flax.linen import Module
from torch import nn

from fedjax_collapse.core.records import UserError
from fedjax_collapse.nn import networks
from fedjax_collapse.nn.interchange import torch_layers as layers
from fedjax_collapse.nn.interchange.torch_layers import Residual, conv, conv_norm, conv_relu, global_mean
from fedjax_collapse.nn.interchange.torch_weights import FROM_TORCH, paths_in_order
from fedjax_collapse.nn.interchange.torch_weights import arrays_in_order as arrays_in_order
from fedjax_collapse.nn.model import Model
from fedjax_collapse.nn.network import scale
from fedjax_collapse.nn.networks.vit import ViT
from fedjax_collapse.schema.annotations import shown
from fedjax_collapse.schema.discovery import classes

_OF_HEAD = ("projector", "projector_dim", "normalize_features")
# Fields of a network that change neither its arrays nor, but for rounding, its outputs in evaluation.
_NOT_IN_TORCH = ("parent", "name", "num_classes", "lowering", "target", "kernel_init", "remat", "dtype")


def build(name: str, num_classes: int, image_shape: tuple[int, int, int], **options: Any) -> "Network":
    """Returns the network ``fedjax_collapse/nn/networks/<name>.py`` with its options."""
    return twin(Model(classes(networks, Module)[name](num_classes, **options), image_shape))


def twin(model: Model) -> "Network":
    """Returns the network of a model in PyTorch, with weights of its own.

    Raises:
        UserError: there is none with the network's options.
    """
    module = model.module
    name = {kind: name for name, kind in classes(networks, Module).items()}.get(type(module), type(module).__name__)
    fields = [of for of in dataclasses.fields(module) if of.name not in _NOT_IN_TORCH]
    options = {of.name: value for of in fields if (value := getattr(module, of.name)) != of.default}
    backbone = BACKBONES.get(name)
    own = list(inspect.signature(backbone).parameters)[1:] if backbone else []
    others = sorted(options.keys() - {*own, *_OF_HEAD})
    if others or not backbone:
        given = ", ".join(f"{key}={shown(value)}" for key, value in options.items())
        reason = ", ".join(others) if backbone else name
        raise UserError(f"network {name}({given}) has no equivalent in PyTorch here ({reason})")
    made = backbone(model.input_shape, **{key: getattr(module, key) for key in own})
    return Network(*made, module.num_classes, **{key: getattr(module, key) for key in _OF_HEAD})


def names(model: Model) -> dict[str, str]:
    """Returns the name in the state dict of ``twin(model)`` of each array, by its path, without ``params/``.

    They are those of a model with the linear head, if it has another one.

    Raises:
        UserError: as in ``twin``.
    """
    if hasattr(model.module, "head"):
        model = model.with_module(head="linear")
    paths = ["/".join(path).removeprefix("params/") for path in paths_in_order(model)]
    with torch.device("meta"):
        found = named_tensors(twin(model))
    return dict(zip(paths, found, strict=True))


def load(network: "Network", arrays: list[np.ndarray]) -> "Network":
    """Copies the arrays of ``arrays_in_order`` into the network and returns it."""
    with torch.no_grad():
        for tensor, array in zip(_as_arrays(network), arrays, strict=True):
            if tensor.shape != array.shape:
                raise ValueError(f"weights of shape {array.shape}, expected {tuple(tensor.shape)}")
            tensor.copy_(torch.from_numpy(np.array(array)))
    return network


def _as_arrays(network):
    """Returns views of the averaged tensors in the order of the arrays, kernels as [..., in, out]."""
    if isinstance(network, Transformer):
        return network.leaves().values()
    return [tensor.permute(FROM_TORCH[tensor.ndim]) for tensor in tensors(network)]


def tensors(network: nn.Module) -> list[torch.Tensor]:
    """Returns what federated averaging averages: the parameters, then the running statistics of BatchNorm."""
    return list(named_tensors(network).values())


def named_tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Returns ``tensors`` by their names in the state dict."""
    statistics = {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    return dict(network.named_parameters()) | statistics


class Network(nn.Module):
    """Images [batch, channels, height, width] to logits; ``represent`` gives the features before the classifier."""

    def __init__(self, backbone, width, num_classes, projector="none", projector_dim=256, normalize_features=False):
        super().__init__()
        hidden = {"none": 0, "moon": width, "feddecorr": width // 2, "feduv": projector_dim}[projector]
        made = []
        if projector == "feduv":
            for inputs in (width, projector_dim):
                made += [nn.Linear(inputs, projector_dim), nn.BatchNorm1d(projector_dim), nn.ReLU()]
        elif projector != "none":
            made = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, projector_dim)]
        self.backbone, self.projector = backbone, nn.Sequential(*made)
        self.normalize_features = normalize_features
        self.head = nn.Linear(projector_dim if made else width, num_classes)

    def represent(self, images):
        features = self.projector(self.backbone(images))
        if not self.normalize_features:
            return features
        if self.normalize_features == "layer":
            return nn.functional.layer_norm(features, features.shape[1:])
        return nn.functional.normalize(features) * (
            features.shape[1] ** 0.5 if self.normalize_features == "scaled" else 1
        )

    def forward(self, images):
        return self.head(self.represent(images))


class Transformer(nn.Module):
    """Ids of tokens [batch, length] to logits [batch, length, vocabulary]; PyTorch's own encoder layers, no dropout."""

    def __init__(self, vocabulary: int, width: int = 96, depth: int = 3, heads: int = 8, mlp_width: int = 1536) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocabulary, width))
        options = dict(dropout=0.0, batch_first=True)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, heads, mlp_width, **options) for _ in range(depth)]
        )

    def represent(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the features [batch, length, width]."""
        width, length = self.table.shape[1], tokens.shape[1]
        numbers = torch.arange(max(width, length), device=tokens.device)
        exponents = (numbers[:width] // 2 * 2).to(self.table.dtype) / width
        angles, even = numbers[:length, None] / 10_000**exponents, numbers[:width] % 2 == 0
        vectors = nn.functional.embedding(tokens, self.table) * width**0.5
        vectors = vectors + torch.where(even, angles.sin(), angles.cos())
        is_later = torch.ones(length, length, device=tokens.device).triu(1).bool()
        for block in self.blocks:
            vectors = block(vectors, is_later)
        return vectors

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.represent(tokens) @ self.table.T

    def leaves(self, of: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> dict[str, torch.Tensor]:
        """Returns ``of`` of each param, by path, in the order and orientation of the JAX network."""
        found = {"Embedding_0/table": of(self.table)}
        for i, block in enumerate(self.blocks):
            attention, found_in = block.self_attn, {}
            projections = zip(of(attention.in_proj_weight).chunk(3), of(attention.in_proj_bias).chunk(3), strict=True)
            for name, (kernel, bias) in zip(("query", "key", "value"), projections, strict=True):
                found_in |= {f"{name}/kernel": kernel.T, f"{name}/bias": bias}
            layers = dict(out=attention.out_proj, norm_1=block.norm1, mlp_1=block.linear1, mlp_2=block.linear2)
            for name, layer in (layers | dict(norm_2=block.norm2)).items():
                weight = of(layer.weight)
                is_norm = weight.ndim == 1
                found_in[f"{name}/scale" if is_norm else f"{name}/kernel"] = weight if is_norm else weight.T
                found_in[f"{name}/bias"] = of(layer.bias)
            found |= {f"block_{i}/{name}": leaf for name, leaf in found_in.items()}
        return found


def _mlp(image_shape, hidden):
    widths = [int(np.prod(image_shape)), *hidden]
    made = [layer for a, b in zip(widths, hidden, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(layers.flatten(), *made), widths[-1]


def _small_cnn(image_shape, channels, norm):
    shapes = [(outputs, 3) for outputs in channels]
    made = conv_relu(image_shape[2], shapes, nn.MaxPool2d(2), range(len(channels) - 1), norm=norm)
    return nn.Sequential(*made, *global_mean()), channels[-1]


def _feduv_cnn(image_shape, width_multiplier, convolutions):
    shapes = [(scale(channels, width_multiplier), *shape, 0) for channels, *shape in convolutions]
    return nn.Sequential(*conv_relu(image_shape[2], shapes), *global_mean()), shapes[-1][0]


def _moon_cnn(image_shape, channels, hidden):
    height, width, inputs = image_shape
    shapes = [(outputs, 5, 1, 0) for outputs in channels]
    made = conv_relu(inputs, shapes, nn.MaxPool2d(2), range(len(channels)), norm="none")
    for _ in channels:
        height, width = (height - 4) // 2, (width - 4) // 2
    dense, features = _mlp((height, width, channels[-1]), hidden)
    return nn.Sequential(*made, dense), features


def _alexnet(image_shape, width_multiplier, convolutions):
    shapes = [(scale(channels, width_multiplier), *shape) for channels, *shape, _ in convolutions]
    pooled = [index for index, (*_, is_pooled) in enumerate(convolutions) if is_pooled]
    made = conv_relu(image_shape[2], shapes, nn.MaxPool2d(3, 2), pooled, bias=True)
    flat, hidden = 36 * shapes[-1][0], scale(4096, width_multiplier)
    dense = [
        layer for inputs in (flat, hidden) for layer in (nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
    ]
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(6), layers.flatten(), *dense), hidden


def _in_stages(block, inputs, stages):
    """Blocks and their last number of channels; a stage is (channels, stride of the first block, blocks, ...)."""
    made = []
    for outputs, stride, count, *options in stages:
        for index in range(count):
            made += block(inputs, outputs, 1 if index else stride, *options)
            inputs = outputs
    return made, inputs


def _mobilenet_v2(image_shape, width_multiplier, stages):
    first, last = (scale(channels, width_multiplier) for channels in (32, 1280))
    stages = [(scale(channels, width_multiplier), stride, blocks, by) for by, channels, blocks, stride in stages]
    blocks, inputs = _in_stages(_inverted_residual, first, stages)
    ends = conv_relu(image_shape[2], [(first,)]), conv_relu(inputs, [(last, 1)])
    return nn.Sequential(*ends[0], *blocks, *ends[1], *global_mean()), last


def _inverted_residual(inputs, outputs, stride, expansion):
    hidden = expansion * inputs
    depthwise = conv_relu(hidden, [(hidden, 3, stride)], groups=hidden)
    branch = nn.Sequential(*conv_relu(inputs, [(hidden, 1)]), *depthwise, *conv_norm(hidden, outputs, 1))
    if stride != 1:
        return [branch]
    return [Residual(branch, nn.Sequential(*conv_norm(inputs, outputs, 1)) if inputs != outputs else None)]


def _residual_network(
    image_shape, blocks, strides, stem_size, stem_stride, width_multiplier, width, block, padded_shortcut, norm
):
    width = scale(width, width_multiplier)
    stages = [(width * 2**i * block.expansion, *stage) for i, stage in enumerate(zip(strides, blocks, strict=True))]
    in_torch = functools.partial(_residual_block, block=block, padded_shortcut=padded_shortcut, norm=norm)
    made, features = _in_stages(in_torch, width, stages)
    stem = conv_relu(image_shape[2], [(width, stem_size, stem_stride)], norm=norm)
    return nn.Sequential(*stem, *made, *global_mean()), features


def _residual_block(inputs, outputs, stride, block, padded_shortcut, norm):
    middle, is_bottleneck = outputs // block.expansion, block.expansion > 1
    shapes = [(middle, 1), (middle, 3, stride)] if is_bottleneck else [(middle, 3, stride)]
    last = conv_norm(middle, outputs, 1 if is_bottleneck else 3, norm=norm)
    branch, shortcut = nn.Sequential(*conv_relu(inputs, shapes, norm=norm), *last), None
    if padded_shortcut and (stride, inputs) != (1, outputs):
        shortcut = layers.padded_shortcut(outputs - inputs, stride)
    elif (stride, inputs) != (1, outputs):
        shortcut = nn.Sequential(*conv_norm(inputs, outputs, 1, stride, norm=norm))
    return [Residual(branch, shortcut), nn.ReLU()]


def _wide_resnet(image_shape, depth, width_multiplier, dropout):
    stages = [(scale(16 * 2**i, width_multiplier), 2 if i else 1, depth // 6, dropout) for i in range(3)]
    made, features = _in_stages(_pre_activation, 16, stages)
    last = nn.BatchNorm2d(features, momentum=0.9), nn.ReLU()
    return nn.Sequential(conv(image_shape[2], 16, bias=True), *made, *last, *global_mean()), features


def _pre_activation(inputs, outputs, stride, dropout):
    first = nn.BatchNorm2d(inputs), nn.ReLU(), conv(inputs, outputs, bias=True), nn.Dropout(dropout)
    second = nn.BatchNorm2d(outputs), nn.ReLU(), conv(outputs, outputs, stride=stride, bias=True)
    is_same = stride == 1 and inputs == outputs
    shortcut = None if is_same else conv(inputs, outputs, 1, stride, bias=True)
    return [Residual(nn.Sequential(*first, *second), shortcut)]


def _efficientnet_b0(image_shape, width_multiplier, stages, dropout, drop_path):
    first, last, features = (scale(channels, width_multiplier) for channels in (32, 1280, 640))
    rates = iter(np.linspace(0, drop_path, sum(stage[-1] for stage in stages), endpoint=False))
    stages = [
        (scale(channels, width_multiplier), stride, blocks, expansion, size, rates)
        for expansion, size, stride, channels, blocks in stages
    ]
    blocks, inputs = _in_stages(_mb_conv, first, stages)
    stem = *conv_norm(image_shape[2], first, stride=2), nn.SiLU()
    top = *conv_norm(inputs, last, 1), nn.SiLU(), *global_mean(), nn.Dropout(dropout)
    return nn.Sequential(*stem, *blocks, *top, nn.Linear(last, features), nn.ReLU()), features


def _mb_conv(inputs, outputs, stride, expansion, size, rates):
    hidden, rate = expansion * inputs, next(rates)
    expand = [*conv_norm(inputs, hidden, 1), nn.SiLU()] if expansion != 1 else []
    depthwise = *conv_norm(hidden, hidden, size, stride, groups=hidden), nn.SiLU()
    squeeze = layers.Excitation(hidden, max(1, inputs // 4)), *conv_norm(hidden, outputs, 1)
    branch = nn.Sequential(*expand, *depthwise, *squeeze)
    return [Residual(branch.append(layers.DropPath(rate))) if stride == 1 and inputs == outputs else branch]


def _vit(image_shape, size, patch, width, depth, heads, mlp_width, pool, epsilon, gelu):
    width, depth, heads, hidden = ViT(1, size, patch, width, depth, heads, mlp_width).dimensions()
    has_token = pool == "token"
    tokens = (image_shape[0] // patch) * (image_shape[1] // patch) + has_token
    made = [conv(image_shape[2], width, patch, patch, padding=0, bias=True), nn.Flatten(2)]
    made += [layers.Apply(lambda patches: patches.transpose(1, 2)), *[layers.class_token(width)] * has_token]
    made.append(layers.positions(tokens, width))
    for _ in range(depth):
        mlp = nn.Linear(width, hidden), nn.GELU("tanh" if gelu == "tanh" else "none"), nn.Linear(hidden, width)
        for branch in ([layers.Attention(width, heads)], mlp):
            made.append(Residual(nn.Sequential(nn.LayerNorm(width, epsilon), *branch)))
    pooled = layers.Apply(lambda tokens: tokens[:, 0] if has_token else tokens.mean(1))
    return nn.Sequential(*made, nn.LayerNorm(width, epsilon), pooled), width


BACKBONES = {
    "alexnet": _alexnet,
    "efficientnet_b0": _efficientnet_b0,
    "feduv_cnn": _feduv_cnn,
    "mlp": _mlp,
    "mobilenet_v2": _mobilenet_v2,
    "moon_cnn": _moon_cnn,
    "pfllib_cnn": _moon_cnn,
    **dict.fromkeys(("resnet18", "resnet20", "resnet32", "resnet50"), _residual_network),
    "small_cnn": _small_cnn,
    "vit": _vit,
    "wide_resnet": _wide_resnet,
}
