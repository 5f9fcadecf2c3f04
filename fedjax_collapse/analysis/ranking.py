"""How well logits rank the examples of each of several labels."""

import numpy as np
from jaxtyping import Float, Shaped


def average_precisions(
    logits: Float[np.ndarray, "examples labels"], labels: Shaped[np.ndarray, "examples labels"]
) -> Float[np.ndarray, " labels"]:
    """Returns the average precision of each label, ``sum_n (R_n - R_{n-1}) P_n`` over its distinct logits, descending.

    ``P_n`` and ``R_n`` are precision and recall of the examples whose logit is at least the n-th: the same as
    ``sklearn.metrics.average_precision_score``. NaN for a label that no example has, or if a logit is not finite.
    """
    return np.array([_average_precision(*column) for column in zip(logits.T, np.asarray(labels).T, strict=True)])


def _average_precision(logits, labels):
    is_true = labels.astype(bool)
    if not is_true.any() or not np.isfinite(logits).all():
        return np.nan
    order = np.argsort(-logits, kind="stable")
    found, logits = np.cumsum(is_true[order]), logits[order]
    ends = np.append(np.flatnonzero(np.diff(logits)), len(logits) - 1)  # the last example of each distinct logit
    gained = np.diff(found[ends], prepend=0) / found[-1]
    return float(np.sum(gained * found[ends] / (ends + 1)))
