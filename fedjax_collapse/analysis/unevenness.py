"""How uneven the eigenvalues of a batch's features are: what FedMR's table 7 shows.

Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping" (TMLR 2023). In a batch of n
rows, features are standardised class by class (divisor n_c), and with eigenvalues l_1 >= l_2 >= ... of

    M = 1/(n - 1) sum z z^T         it is         V = 1/n sum_(i <= 50) (l_i - mean of these 50)^2

The paper has n = 128, and the divisor of V is its 128, not 50. Which M it means of all classes in a batch is not said:
ours is of their rows together, not the sum of the classes' own.
"""

import math

import numpy as np
from jaxtyping import Float, Int

from fedjax_collapse.analysis.moments import ROUNDING
from fedjax_collapse.analysis.spectrum import eigenvalues


def eigenvalue_variance(
    features: Float[np.ndarray, "batch features"], labels: Int[np.ndarray, " batch"], top: int = 50
) -> float:
    """V of one batch, of the ``top`` largest eigenvalues or all that there are: 0 if they are equal.

    A feature that is constant in a class, up to rounding, is 0 there. NaN for fewer than two rows, or if not all
    features are finite.
    """
    count, dim = features.shape
    if count < 2 or not np.isfinite(features).all():
        return math.nan
    rows = standardized_by_class(features, labels)
    gram = rows @ rows.T if count < dim else rows.T @ rows  # both have the same eigenvalues but for zeros
    largest = np.zeros(min(top, dim))
    found = eigenvalues(gram / (count - 1))[: len(largest)]
    largest[: len(found)] = found
    return float(np.sum((largest - largest.mean()) ** 2) / count)


def mean_eigenvalue_variance(
    features: Float[np.ndarray, "examples features"],
    labels: Int[np.ndarray, " examples"],
    batch_size: int = 128,
    seed: int = 0,
) -> float:
    """The mean of V over batches of the examples in a random order, always the same; a last batch that is not whole is
    left out, unless it is the only one."""
    order = np.random.default_rng(seed).permutation(len(features))
    batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    whole = [rows for rows in batches if len(rows) == batch_size] or batches
    return float(np.mean([eigenvalue_variance(features[rows], labels[rows]) for rows in whole]))


def standardized_by_class(
    features: Float[np.ndarray, "batch features"], labels: Int[np.ndarray, " batch"]
) -> Float[np.ndarray, "batch features"]:
    """Each row minus the mean of its class, over the class's standard deviation (divisor n_c), in float64."""
    rows = np.asarray(features, np.float64).copy()
    for label in np.unique(labels):
        own = rows[labels == label]
        deviation = own.std(axis=0)
        deviation[deviation <= ROUNDING * np.abs(own).max(axis=0)] = np.inf
        rows[labels == label] = (own - own.mean(axis=0)) / deviation
    return rows
