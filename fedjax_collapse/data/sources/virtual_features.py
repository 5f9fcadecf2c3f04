"""GGEUR: virtual features around the features of each client, with the covariance of all clients' features.

    server   S_c = sum_k (n_kc / n_c) (S_kc + (m_kc - m_c)(m_kc - m_c)^T),   m_c = sum_k (n_kc / n_c) m_kc
    clients  z + e,   z = their own features of class c in turn,   e ~ N(0, S_c)

with n_kc, m_kc and S_kc the number, mean and covariance (divisor n_kc) of client k's features of class c: S_c is the
covariance of all features of the class. A client draws until it has enough examples of each class that it holds, once,
before the first round. Ma et al., "Geometric Knowledge-Guided Localized Global Distribution Alignment for Federated
Learning" (CVPR 2025), which has 5000 for CIFAR-10 and 500 for other data, on features of CLIP.

If each client is a domain, it also draws around the means m_jc of the other clients' features of its classes, from S_c
with ten enlarged eigenvalues.

The released code adds 1e-6 to the diagonal of S_c for its Cholesky factor; here the square root is used. The code
multiplies the first ten eigenvalues, which are the smallest, by 5 to 1 (``enlarged="official"``). ``largest``
multiplies the ten largest ones by falling factors, and ``none`` draws from S_c itself.
"""

from typing import Annotated, NamedTuple

import numpy as np

from fedjax_collapse.data.arrays import as_array
from fedjax_collapse.schema.options import Count, Natural, Seed, checked

_ENLARGED = np.linspace(5, 1, 10)  # factors of eigenvalues
ENLARGED = ("none", "largest", "official")


class Drawn(NamedTuple):
    """Virtual features."""

    features: np.ndarray  # [virtual, d] float32
    rows: np.ndarray  # [virtual] of real features with the same label and owner: the centre, if it is not a mean


def class_covariances(features: np.ndarray, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the covariance [d, d] of the features of each class with examples, in float64."""
    return {int(c): np.atleast_2d(np.cov(features[labels == c].astype(float).T, bias=True)) for c in np.unique(labels)}


@checked
def draw_virtual_features(
    features: np.ndarray,
    labels: np.ndarray,
    owners: np.ndarray,
    count: Count = 5000,
    seed: Seed = 0,
    others: Natural = 0,
    enlarged: Annotated[str, ENLARGED] = "none",
) -> Drawn:
    """Draws virtual features until each client has ``count`` examples of each class that it holds.

    Args:
        features: [examples, d] of all clients.
        labels: [examples] integers.
        owners: [examples] the client of each.
        count: examples of a class at a client, own and virtual; a client may have more of its own.
        seed: of the drawing.
        others: examples of a class that a client draws around each other client's mean of that class.
        enlarged: the eigenvalues of the covariance to enlarge for ``others``.
    """
    features, labels, owners = (as_array("features", array) for array in (features, labels, owners))
    drawn, around = [np.zeros((0, features.shape[1]), np.float32)], [np.zeros(0, int)]
    for c, covariance in class_covariances(features, labels).items():
        root, enlarged_root = _root(covariance, "none"), _root(covariance, enlarged)
        holders = np.unique(owners[labels == c])
        means = {k: features[(labels == c) & (owners == k)].astype(float).mean(axis=0) for k in holders}
        for client in holders:
            own, rng = np.flatnonzero((labels == c) & (owners == client)), np.random.default_rng([seed, c, client])
            rows = np.resize(own, max(0, count - len(own)))
            drawn.append((features[rows] + rng.normal(size=(len(rows), len(root))) @ root).astype(np.float32))
            around.append(rows)
            for other in holders[holders != client]:
                noise = rng.normal(size=(others, len(root))) @ enlarged_root
                drawn.append((means[other] + noise).astype(np.float32))
                around.append(np.resize(own, others))
    return Drawn(np.concatenate(drawn), np.concatenate(around))


def _root(covariance, enlarged):
    """Returns the square root of a covariance, with ten enlarged eigenvalues."""
    values, vectors = np.linalg.eigh(covariance)
    values, factors = np.maximum(values, 0), _ENLARGED[: len(values)]
    if enlarged == "official":
        values[: len(factors)] *= factors
    elif enlarged == "largest":
        values[::-1][: len(factors)] *= factors
    return (vectors * np.sqrt(values)) @ vectors.T
