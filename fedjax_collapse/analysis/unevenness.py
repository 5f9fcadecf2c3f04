"""The variance of the eigenvalues of a batch's features, as in FedMR's table 7.

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023). In a batch of n
rows, features are standardised within each class (divisor n_c). With the eigenvalues l_1 >= l_2 >= ... of

    M = 1/(n - 1) sum z z^T         it is         V = 1/n sum_(i <= 50) (l_i - mean of these 50)^2

The paper has n = 128, and the divisor of V is this 128, not 50. It does not state which M it means for several classes
in a batch; ours is over all rows together, not the sum over classes.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from fedjax_collapse.analysis.moments import ROUNDING
from fedjax_collapse.analysis.shapes import Features, Labels
from fedjax_collapse.analysis.spectrum import eigenvalues


def eigenvalue_variance(
    features: Float[np.ndarray, "batch features"], labels: Int[np.ndarray, " batch"], top: int = 50
) -> float:
    """Returns V of one batch, from the ``top`` largest eigenvalues or all if there are fewer; 0 if they are equal.

    A feature that is constant within a class, up to rounding, is 0 there. NaN with fewer than two rows, or if a feature
    is not finite.
    """
    count, dim = features.shape
    if count < 2 or not np.isfinite(features).all():
        return math.nan
    rows = standardized_by_class(features, labels)
    gram = rows @ rows.T if count < dim else rows.T @ rows  # both have the same eigenvalues, except for zeros
    largest = np.zeros(min(top, dim))
    found = eigenvalues(gram / (count - 1))[: len(largest)]
    largest[: len(found)] = found
    return float(np.sum((largest - largest.mean()) ** 2) / count)


def mean_eigenvalue_variance(features: Features, labels: Labels, batch_size: int = 128, seed: int = 0) -> float:
    """Returns the mean of V over batches of the examples, in a fixed random order.

    A partial last batch is dropped, unless it is the only one.
    """
    order = np.random.default_rng(seed).permutation(len(features))
    batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    whole = [rows for rows in batches if len(rows) == batch_size] or batches
    return float(np.mean([eigenvalue_variance(features[rows], labels[rows]) for rows in whole]))


def standardized_by_class(
    features: Float[np.ndarray, "batch features"], labels: Int[np.ndarray, " batch"]
) -> Float[np.ndarray, "batch features"]:
    """Standardises each row by the mean and standard deviation (divisor n_c) of its class, in float64."""
    rows = np.asarray(features, np.float64).copy()
    for label in np.unique(labels):
        own = rows[labels == label]
        deviation = own.std(axis=0)
        deviation[deviation <= ROUNDING * np.abs(own).max(axis=0)] = np.inf
        rows[labels == label] = (own - own.mean(axis=0)) / deviation
    return rows
