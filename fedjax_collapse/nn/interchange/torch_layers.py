"""Layers of the networks in ``torch_networks.py`` that ``torch.nn`` lacks."""

import torch
from torch import nn


class Apply(nn.Module):
    """A function of the inputs and, if a shape is given, of a learned tensor."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.learned = nn.ParameterList([nn.Parameter(torch.zeros(shape))] if shape else [])

    def forward(self, inputs):
        return self.function(inputs, *self.learned)


class Residual(nn.Module):
    """Sum of a branch and a shortcut."""

    def __init__(self, branch, shortcut=None):
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, images):
        return self.branch(images) + self.shortcut(images)


class Excitation(nn.Module):
    """Channels times weights in 0..1 that come from the channels' means."""

    def __init__(self, channels, squeezed):
        super().__init__()
        dense = nn.Linear(channels, squeezed), nn.SiLU(), nn.Linear(squeezed, channels), nn.Sigmoid()
        self.weights = nn.Sequential(*global_mean(), *dense)

    def forward(self, images):
        return images * self.weights(images)[:, :, None, None]


class DropPath(nn.Module):
    """In training, sets whole examples to zero and scales up the others."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, images):
        if not self.training:
            return images
        keep = torch.rand(len(images), 1, 1, 1, device=images.device) >= self.rate
        return images * keep / (1 - self.rate)


class Attention(nn.Module):
    """Multi-head self-attention, with a matrix each for queries, keys, values and outputs."""

    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, tokens):
        parts = (layer(tokens).unflatten(2, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        return self.out(attended.transpose(1, 2).flatten(2))


def flatten():
    """[batch, height * width * channels], in the order of images whose channels come last."""
    return Apply(lambda images: images.permute(0, 2, 3, 1).flatten(1))


def padded_shortcut(missing, stride):
    """Every ``stride``-th pixel, between channels of zeros."""
    padding = (0, 0, 0, 0, missing // 2, missing - missing // 2)
    return Apply(lambda images: nn.functional.pad(images[:, :, ::stride, ::stride], padding))


def class_token(width):
    """Prepends a learned token."""
    return Apply(lambda tokens, learned: torch.cat([learned.expand(len(tokens), 1, -1), tokens], 1), width)


def positions(tokens, width):
    """Adds a learned vector to each token; the vectors are the columns of a matrix."""
    return Apply(lambda tokens, learned: tokens + learned.T, width, tokens)


def conv(inputs, outputs, size=3, stride=1, padding=None, groups=1, bias=False):
    """A convolution; by default, ``padding`` preserves the size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2 if padding is None else padding, 1, groups, bias)


def conv_norm(inputs, outputs, *arguments, norm="batch", **options):
    """A convolution and its BatchNorm, GroupNorm of two groups, or, with ``norm="none"``, bias."""
    if norm == "none":
        return [conv(inputs, outputs, *arguments, **options, bias=True)]
    return [
        conv(inputs, outputs, *arguments, **options),
        nn.GroupNorm(2, outputs) if norm == "group" else nn.BatchNorm2d(outputs),
    ]


def conv_relu(inputs, layers, pool=None, pooled=(), **options):
    """Convolutions (channels, size, stride, padding) with ReLU, and a pool after convolutions number ``pooled``."""
    made = []
    for index, (outputs, *shape) in enumerate(layers):
        made += [*conv_norm(inputs, outputs, *shape, **options), nn.ReLU(), *[pool] * (index in pooled)]
        inputs = outputs
    return made


def global_mean():
    """Averages each channel over its pixels."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()
