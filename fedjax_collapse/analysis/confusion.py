"""Which classes a classifier takes examples for: the confusion matrix, and from it the accuracy on each class."""

import numpy as np
from jaxtyping import Float, Int


def has_predictions(logits: Float[np.ndarray, "examples *classes"]) -> bool:
    """Whether the largest logit of every example is finite, as it is not once a model has diverged. A logit of minus
    infinity, as of a class that is ruled out, predicts nothing wrong."""
    return bool(np.isfinite(logits.max(axis=-1) if logits.ndim > 1 else logits).all())


def confusion_matrix(
    labels: Int[np.ndarray, " examples"], logits: Float[np.ndarray, "examples classes"]
) -> Float[np.ndarray, "classes classes"]:
    """Numbers of examples by their class (row) and the class of their largest logit (column); NaN if an example has no
    finite one."""
    num_classes = logits.shape[1]
    if not has_predictions(logits):
        return np.full((num_classes, num_classes), np.nan)
    pairs = labels.astype(np.int64) * num_classes + np.argmax(logits, axis=1)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes).astype(float)


def class_accuracy(confusion: Float[np.ndarray, "classes classes"]) -> Float[np.ndarray, " classes"]:
    """Share of each class's examples that are taken for it, the class's recall; NaN for a class without examples."""
    counts = confusion.sum(axis=1)
    return np.divide(np.diagonal(confusion), counts, out=np.full(len(counts), np.nan), where=counts > 0)
