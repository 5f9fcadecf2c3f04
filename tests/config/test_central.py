"""The studies of FedDecorr's central claim and of equal training: their sizes, images and arms."""

import numpy as np

from experiments.configs.rank import central
from fedjax_collapse.data import sources


def test_images_are_resized_and_the_first_training_examples_are_taken(monkeypatch):
    columns = np.repeat(np.arange(28, dtype=np.uint8) * 9, 28).reshape(28, 28).T  # brighter to the right
    images = np.stack([columns, columns + 1, columns + 2])[..., None]
    source = sources.Source(images, np.array([2, 0, 1]), images[::-1], np.array([1, 0, 2]), 0.0, 255.0, ("a", "b", "c"))
    monkeypatch.setattr(sources, "mnist5k", lambda: source)
    for size in (14, 32):
        resized = central.mnist5k(size, 2)
        assert resized.images.shape == (2, size, size, 1) and resized.test_images.shape == (3, size, size, 1)
        assert resized.images.dtype == np.uint8 and resized.labels.tolist() == [2, 0]
        assert (np.diff(resized.images.astype(int), axis=2) >= 0).all() and not np.diff(resized.images, axis=1).any()
        assert resized.images[1].astype(int).mean() - resized.images[0].mean() == 1.0
        np.testing.assert_array_equal(resized.test_images[1:], resized.images[::-1])
