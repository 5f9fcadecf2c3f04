"""The confusion matrix of a classifier, and its accuracy on each class."""

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.shapes import Labels, Logits


def has_predictions(logits: Float[np.ndarray, "examples ..."]) -> bool:
    """Returns whether the largest logit of each example is finite; it is not for a diverged model.

    Logits of minus infinity, for excluded classes, are accepted.
    """
    return bool(np.isfinite(logits.max(axis=-1) if logits.ndim > 1 else logits).all())


def confusion_matrix(labels: Labels, logits: Logits) -> Float[np.ndarray, "classes classes"]:
    """Returns the number of examples by class (row) and by class of the largest logit (column).

    NaN if the largest logit of an example is not finite.
    """
    num_classes = logits.shape[1]
    if not has_predictions(logits):
        return np.full((num_classes, num_classes), np.nan)
    pairs = labels.astype(np.int64) * num_classes + np.argmax(logits, axis=1)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).astype(float)


def class_accuracy(confusion: Float[np.ndarray, "classes classes"]) -> Float[np.ndarray, " classes"]:
    """Returns the recall of each class, the fraction of its examples predicted correctly; NaN without examples."""
    counts = confusion.sum(axis=1)
    return np.divide(np.diagonal(confusion), counts, out=np.full(len(counts), np.nan), where=counts > 0)
