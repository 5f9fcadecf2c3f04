"""Linear centred kernel alignment (CKA): the similarity of two models' representations of the same examples.

Kornblith et al., "Similarity of Neural Network Representations Revisited" (ICML 2019). It is invariant to rotation and
scaling of either features. NaN if either is constant or not finite.
"""

import math

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.moments import ROUNDING

First = Float[np.ndarray, "examples first_features"]
Second = Float[np.ndarray, "examples second_features"]


def linear_cka(first: First, second: Second) -> float:
    """Returns ``|X^T Y|_F^2 / (|X^T X|_F |Y^T Y|_F)`` of centred features, from 0 to 1."""
    x, y = _centred(first), _centred(second)
    return _ratio(_square(x.T @ y), _square(x.T @ x), _square(y.T @ y))


def debiased_cka(first: First, second: Second) -> float:
    """Returns CKA from unbiased estimates: its mean is 0 for independent features and any number of examples.

    Song et al., "Feature Selection via Dependence Maximization" (JMLR 2012), eq. 5, in the form of CKA's released code.
    It may be negative. NaN with fewer than four examples.
    """
    x, y = _centred(first), _centred(second)
    if len(x) < 4:
        return math.nan
    return _ratio(_unbiased(x, y), _unbiased(x, x), _unbiased(y, y))


def _unbiased(x, y):
    count = len(x)
    rows_x, rows_y = np.sum(x**2, axis=1), np.sum(y**2, axis=1)
    same = count / (count - 2) * (rows_x @ rows_y)
    return _square(x.T @ y) - same + rows_x.sum() * rows_y.sum() / ((count - 1) * (count - 2))


def _ratio(both, first, second):
    if not (first > 0 and second > 0):
        return math.nan
    return float(both / math.sqrt(first) / math.sqrt(second))


def _square(matrix):
    return np.sum(matrix**2)


def _centred(features):
    features = np.asarray(features, np.float64)
    if not np.isfinite(features).all():
        return np.full_like(features, np.nan)
    centred = features - features.mean(axis=0)
    return np.where(_square(centred) <= ROUNDING**2 * _square(features), 0.0, centred)
