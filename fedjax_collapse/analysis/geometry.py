"""Features on the unit sphere: how uniformly they cover it, and how close features of the same class are.

Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere"
(ICML 2020). Features are scaled to norm 1; zero features remain zero. NaN without a pair, or if a feature is not
finite.
"""

import math

import numpy as np

from fedjax_collapse.analysis.moments import Moments
from fedjax_collapse.analysis.shapes import Features


def on_sphere(features: Features) -> Features:
    """Scales features to norm 1, in float64."""
    features = np.asarray(features, np.float64)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.divide(features, lengths, out=np.where(np.isfinite(lengths), 0 * features, np.nan), where=lengths > 0)


def uniformity(features: Features, t: float = 2.0, most: int = 2000, seed: int = 0) -> float:
    """Returns ``log mean_(i<j) exp(-t |u_i - u_j|^2)``: at most 0; lower is more uniform.

    If there are more than ``most`` examples, ``most`` are drawn by the seed, the same ones for each model.
    """
    if len(features) > most:
        rows = np.random.default_rng(seed).choice(len(features), most, replace=False)
        features = features[np.sort(rows)]
    units = on_sphere(features)
    if len(units) < 2 or not np.isfinite(units).all():
        return math.nan
    squares = np.sum(units**2, axis=1)
    distances = squares[:, None] + squares - 2 * units @ units.T
    pairs = -t * np.maximum(distances[np.triu_indices(len(units), 1)], 0)
    largest = pairs.max()
    return float(largest + np.log(np.mean(np.exp(pairs - largest))))


def class_alignment(moments: Moments) -> float:
    """Returns the alignment (alpha 2) over all ordered pairs of examples of the same class, from 0 to 4.

    ``moments`` are of the non-zero ``on_sphere(features)``. No pass over pairs is needed: the pairs of class c
    contribute ``2 n_c^2 - 2 |sum u|^2``.
    """
    counts = moments.counts
    sums = moments.sums + counts[:, None] * moments.shift
    pairs = np.sum(counts * (counts - 1))
    if not pairs:
        return math.nan
    return float(np.sum(2 * counts**2 - 2 * np.sum(sums**2, axis=1)) / pairs)
