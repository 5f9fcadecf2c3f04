"""Which classes a classifier takes examples for: the confusion matrix, and from it the accuracy on each class."""

import numpy as np
from jaxtyping import Float, Int


def confusion_matrix(
    labels: Int[np.ndarray, " examples"], logits: Float[np.ndarray, "examples classes"]
) -> Int[np.ndarray, "classes classes"]:
    """Numbers of examples by their class (row) and the class of their largest logit (column)."""
    num_classes = logits.shape[1]
    pairs = labels.astype(np.int64) * num_classes + np.argmax(logits, axis=1)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_accuracy(confusion: Int[np.ndarray, "classes classes"]) -> Float[np.ndarray, " classes"]:
    """Share of each class's examples that are taken for it, the class's recall; NaN for a class without examples."""
    counts = confusion.sum(axis=1)
    correct = np.diagonal(confusion).astype(float)
    return np.divide(correct, counts, out=np.full(len(counts), np.nan), where=counts > 0)
