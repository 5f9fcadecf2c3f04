"""A store of images without a pattern, for tests that train a few steps on it."""

import numpy as np

from fedjax_collapse.data.store import StoreWriter


def save_small_store(folder, sizes, tests, seed=0):
    """Writes clients of these sizes and so many test examples: images 4x4x1 of three classes; returns the folder."""
    rng = np.random.default_rng(seed)

    def draw(count):
        return rng.integers(0, 256, (count, 4, 4, 1), np.uint8), rng.integers(0, 3, count)

    with StoreWriter(folder, class_names=("a", "b", "c"), mean=(100.0,), std=(50.0,)) as store:
        for number, size in enumerate(sizes):
            store.add(f"c{number}", *draw(size))
        store.add_test(*draw(tests))
    return folder
