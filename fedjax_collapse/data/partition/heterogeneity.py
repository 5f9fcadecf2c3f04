"""Statistics of the differences between the clients of a partition, from their class counts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from fedjax_collapse.core.records import in_one_line


class Heterogeneity(NamedTuple):
    """Size, number of classes and entropy of each client, and two statistics of the whole partition."""

    sizes: np.ndarray  # [clients] examples
    classes: np.ndarray  # [clients] classes with at least one example
    entropy: np.ndarray  # [clients] nats, of the client's class distribution: 0 for one class
    class_entropy: float  # nats, of the class distribution of all clients' examples
    mutual_information: float  # nats, of an example's client and class

    __repr__ = in_one_line


def heterogeneity(class_counts: Integer[np.ndarray, "clients classes"]) -> Heterogeneity:
    """Returns the statistics of a partition from the clients' class counts.

    The mutual information of an example's client and class is the mean over clients, weighted by size, of the
    Kullback-Leibler divergence of the client's class distribution from the distribution of all examples:

        I = sum_i (n_i / n) KL(p_i || p) = H(p) - sum_i (n_i / n) H(p_i)

    It is 0 if all clients have the same distribution, and ``class_entropy`` H(p) if each has one class. For an IID
    partition of n examples it is about (clients - 1)(classes - 1) / 2n by chance. A client without examples has entropy
    0.
    """
    counts = np.asarray(class_counts, float)
    sizes, entropy = counts.sum(axis=1), _entropy(counts)
    class_entropy = float(_entropy(counts.sum(axis=0)))
    within = float(sizes @ entropy / max(sizes.sum(), 1))
    information = max(class_entropy - within, 0.0)  # rounding may make it slightly negative
    return Heterogeneity(sizes.astype(int), (counts > 0).sum(axis=1), entropy, class_entropy, information)


def _entropy(counts):
    """The entropy, in nats, of the distribution along the last axis."""
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return np.sum(shares * np.log(1 / np.where(shares > 0, shares, 1)), axis=-1)
