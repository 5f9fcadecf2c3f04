"""Layers of the networks in ``pytorch_networks.py`` that ``torch.nn`` lacks."""

import torch
from torch import nn


class Residual(nn.Module):
    """Sum of a branch and a shortcut."""

    def __init__(self, branch, shortcut=None):
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, images):
        return self.branch(images) + self.shortcut(images)


class PaddedShortcut(nn.Module):
    """Every ``stride``-th pixel, between channels of zeros."""

    def __init__(self, missing, stride):
        super().__init__()
        self.missing, self.stride = missing, stride

    def forward(self, images):
        before = self.missing // 2
        images = images[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(images, (0, 0, 0, 0, before, self.missing - before))


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
        keep = torch.rand(len(images), 1, 1, 1) >= self.rate
        return images * keep / (1 - self.rate)


class Flatten(nn.Module):
    """[batch, height * width * channels], in the order of images whose channels come last."""

    def forward(self, images):
        return images.permute(0, 2, 3, 1).flatten(1)


class Patches(nn.Module):
    """A convolution whose stride is its size, [batch, height * width, channels] of it."""

    def __init__(self, inputs, outputs, size):
        super().__init__()
        self.conv = conv(inputs, outputs, size, size, padding=0, bias=True)

    def forward(self, images):
        return self.conv(images).flatten(2).transpose(1, 2)


class ClassToken(nn.Module):
    """The tokens after one that is learned."""

    def __init__(self, width):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(width))

    def forward(self, tokens):
        return torch.cat([self.token.expand(len(tokens), 1, -1), tokens], 1)


class Positions(nn.Module):
    """The tokens plus a learned vector each, the columns of a matrix."""

    def __init__(self, tokens, width):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(width, tokens))

    def forward(self, tokens):
        return tokens + self.positions.T


class Attention(nn.Module):
    """Self-attention of heads, with a matrix each for queries, keys, values and what comes out."""

    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, tokens):
        parts = (layer(tokens).unflatten(2, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        return self.out(attended.transpose(1, 2).flatten(2))


class FirstToken(nn.Module):
    """Of [batch, tokens, width]."""

    def forward(self, tokens):
        return tokens[:, 0]


class MeanToken(nn.Module):
    """Of [batch, tokens, width]."""

    def forward(self, tokens):
        return tokens.mean(1)


def conv(inputs, outputs, size=3, stride=1, padding=None, groups=1, bias=False):
    """A convolution; without ``padding``, with as much as keeps the size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2 if padding is None else padding, 1, groups, bias)


def conv_norm(inputs, outputs, *arguments, norm="batch", **options):
    """A convolution and its BatchNorm or, with ``norm="group"``, its GroupNorm of two groups."""
    normalization = nn.GroupNorm(2, outputs) if norm == "group" else nn.BatchNorm2d(outputs)
    return conv(inputs, outputs, *arguments, **options), normalization


def global_mean():
    """Averages each channel over its pixels."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()


def scale(channels, multiplier):
    """A number of channels, at least 1."""
    return max(1, round(channels * multiplier))
