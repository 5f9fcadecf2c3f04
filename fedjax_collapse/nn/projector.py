"""Projectors between a network and its classifier; the features are the projector's outputs.

    none        no projector
    moon        d -> d, ReLU -> 256                        MOON's released code
    feddecorr   d -> d/2, ReLU -> 256                      FedDecorr's code of MOON
    feduv       d -> 256, BatchNorm, ReLU, twice           FedUV's code, for all methods that it compares

256 is the default of ``projector_dim``.
"""

from typing import Annotated

import jax

from fedjax_collapse.core.records import check_choice
from fedjax_collapse.nn.layers import BatchNorm, Dense
from fedjax_collapse.schema.options import OpenChoice

PROJECTORS = ("none", "moon", "feddecorr", "feduv")
Projector = Annotated[str, OpenChoice(PROJECTORS, "")]


def project(kind: str, features: jax.Array, mask: jax.Array, train: bool, dim: int = 256) -> jax.Array:
    """Returns features [batch, dim] of the projector, for use inside a compact method.

    Raises:
        UserError: if the projector is unknown.
    """
    check_choice("projector", kind, PROJECTORS)
    if kind == "none":
        return features
    if kind == "feduv":
        for _ in range(2):
            features = jax.nn.relu(BatchNorm()(Dense(dim)(features), mask, train))
        return features
    hidden = features.shape[-1] if kind == "moon" else features.shape[-1] // 2
    return Dense(dim)(jax.nn.relu(Dense(hidden)(features)))
