"""Projectors between a network and its classifier; the features are the projector's outputs.

    none        no projector
    moon        d -> d, ReLU -> 256                        MOON's released code
    feddecorr   d -> d/2, ReLU -> 256                      FedDecorr's code of MOON
    feduv       d -> 256, BatchNorm, ReLU, twice           FedUV's code, for all methods that it compares

256 is the default of ``projector_dim``.
"""

from typing import Annotated

import jax

from fedjax_collapse.nn.layers import BatchNorm, Dense

PROJECTORS = ("none", "moon", "feddecorr", "feduv")
Projector = Annotated[str, PROJECTORS]


def project(kind: str, features: jax.Array, mask: jax.Array, train: bool, dim: int = 256) -> jax.Array:
    """Returns features [batch, dim] of a ``Projector``, for use inside a compact method."""
    if kind == "none":
        return features
    if kind == "feduv":
        for _ in range(2):
            features = jax.nn.relu(BatchNorm()(Dense(dim)(features), mask, train))
        return features
    hidden = features.shape[-1] if kind == "moon" else features.shape[-1] // 2
    return Dense(dim)(jax.nn.relu(Dense(hidden)(features)))
