"""Where images come from."""

from typing import NamedTuple

import numpy as np


class Source(NamedTuple):
    """A labelled image data set in memory, with a training and a test part."""

    images: np.ndarray  # [examples, height, width, channels] uint8
    labels: np.ndarray  # [examples] int
    test_images: np.ndarray
    test_labels: np.ndarray
    mean: float | tuple  # raw pixel units
    std: float | tuple
    class_names: tuple[str, ...]


def digits(test_fraction: float = 0.2, seed: int = 0) -> Source:
    """The 1,797 real handwritten digits that come with scikit-learn: 8 x 8 pixels of 0 to 16, ten classes.

    A copy of the test part of the UCI "Optical Recognition of Handwritten Digits" data. It has no split of its own;
    this one is stratified by class.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.uint8)
    images, test_images, labels, test_labels = train_test_split(
        images, labels, test_size=test_fraction, random_state=seed, stratify=labels
    )
    return Source(images, labels, test_images, test_labels, 0.0, 16.0, tuple("0123456789"))
