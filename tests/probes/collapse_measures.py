"""NC1 of the server's features, and linear CKA of every local model's with them; both from sums over the test set."""

import numpy as np


def nc1(view):
    """``tr(S_W S_B^+) / C`` of within- and between-class covariance: 0 where every class is a point."""
    features, labels = view.server.features.astype(float), view.labels
    counts = np.bincount(labels)
    present = counts > 0
    sums = np.zeros((len(counts), features.shape[1]))
    np.add.at(sums, labels, features)
    sums, counts = sums[present], counts[present]
    within = (features.T @ features - (sums / counts[:, None]).T @ sums) / len(labels)
    means = sums / counts[:, None]
    centred = means - means.mean(axis=0)
    between = centred.T @ centred / len(counts)
    return np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / len(counts)


def cka(view):
    """Mean over the watched clients, and each of them."""
    values = [linear_cka(model.features, view.server.features) for model in view.local.values()]
    return {"mean": np.mean(values), "lowest": np.min(values)}


def linear_cka(first, second):
    """``||X^T Y||^2 / (||X^T X|| ||Y^T Y||)`` of centred features."""
    x, y = (features.astype(float) - features.mean(axis=0) for features in (first, second))
    return np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
