"""GGEUR: virtual features around the features of each client, distributed as those of all clients.

    server   S_c = sum_k (n_kc / n_c) (S_kc + (m_kc - m_c)(m_kc - m_c)^T),   m_c = sum_k (n_kc / n_c) m_kc
    clients  z + e,   z = their own features of class c in turn,   e ~ N(0, S_c)

with n_kc, m_kc and S_kc the number, mean and covariance (divisor n_kc) of client k's features of class c: S_c is the
covariance of all features of the class. A client draws until it has enough examples of each class that it holds, once,
before the first round. Ma et al., "Geometric Knowledge-Guided Localized Global Distribution Alignment for Federated
Learning" (CVPR 2025), which has 5000 for CIFAR-10 and 500 for other data, on features of CLIP.

The released code adds 1e-6 to the diagonal of S_c, for its Cholesky factor; here its square root is taken. For several
domains the code also draws around the means of other domains, with ten eigenvalues of S_c enlarged 5 to 1 times. They
are the ten smallest, as the largest come last. That form is not implemented.
"""

from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.options import Count, Seed, checked
from fedjax_collapse.data.arrays import as_array


class Drawn(NamedTuple):
    """Virtual features."""

    features: np.ndarray  # [virtual, d] float32
    rows: np.ndarray  # [virtual] of the features that they are around, which have the same label and owner


def class_covariances(features: np.ndarray, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the covariance [d, d] of the features of each class that there is, in float64."""
    return {int(c): np.atleast_2d(np.cov(features[labels == c].astype(float).T, bias=True)) for c in np.unique(labels)}


@checked
def draw_virtual_features(
    features: np.ndarray, labels: np.ndarray, owners: np.ndarray, count: Count = 5000, seed: Seed = 0
) -> Drawn:
    """Draws virtual features until each client has ``count`` examples of each class that it holds.

    Args:
        features: [examples, d] of all clients.
        labels: [examples] integers.
        owners: [examples] the client of each.
        count: examples of a class at a client, with its own; a client that has more keeps them.
        seed: of the drawing.
    """
    features, labels, owners = (as_array("features", array) for array in (features, labels, owners))
    drawn, around = [np.zeros((0, features.shape[1]), np.float32)], [np.zeros(0, int)]
    for c, covariance in class_covariances(features, labels).items():
        values, vectors = np.linalg.eigh(covariance)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        for client in np.unique(owners[labels == c]):
            own = np.flatnonzero((labels == c) & (owners == client))
            rows = np.resize(own, max(0, count - len(own)))
            noise = np.random.default_rng([seed, c, client]).normal(size=(len(rows), len(root))) @ root
            drawn.append((features[rows] + noise).astype(np.float32))
            around.append(rows)
    return Drawn(np.concatenate(drawn), np.concatenate(around))
