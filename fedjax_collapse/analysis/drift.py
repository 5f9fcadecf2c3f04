"""Client drift: norms and agreement of the clients' updates in a round, from their inner products.

An update is a local model minus the model that the client received. Under heterogeneous data (Karimireddy et al.,
SCAFFOLD, ICML 2020) updates are long and disagree, so their mean is short.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fedjax_collapse.core.records import PyTree

_AT_ONCE = 2**16  # entries of each update converted to float64 at once, to bound memory


class Drift(NamedTuple):
    """Statistics of several clients' updates."""

    norms: np.ndarray  # [clients]
    cosines: np.ndarray  # [clients (clients - 1) / 2], of each pair; NaN if an update is 0
    agreement: float  # |mean update|^2 / mean |update|^2: 1 if all are equal, 1/clients if they are orthogonal


def inner_products(updates: Sequence[PyTree]) -> Float[np.ndarray, "clients clients"]:
    """Returns the inner products of all pairs of updates, in float64."""
    total = np.zeros((len(updates), len(updates)))
    for leaves in zip(*map(jax.tree.leaves, updates), strict=True):
        flat = [np.asarray(leaf).ravel() for leaf in leaves]
        for first in range(0, flat[0].size, _AT_ONCE):
            rows = np.stack([leaf[first : first + _AT_ONCE] for leaf in flat]).astype(np.float64)
            total += rows @ rows.T
    return total


def drift(products: Float[np.ndarray, "clients clients"]) -> Drift:
    """Returns the drift of updates with these inner products, equally weighted; NaN where undefined."""
    norms = np.sqrt(np.diagonal(products))
    lengths = np.where(norms > 0, norms, np.nan)
    pairs = np.triu_indices(len(norms), 1)
    cosines = (products / np.outer(lengths, lengths))[pairs]
    squares = np.sum(norms**2) * len(norms)
    return Drift(norms, np.clip(cosines, -1, 1), float(products.sum() / squares) if squares > 0 else math.nan)
