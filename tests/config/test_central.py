"""The studies of FedDecorr's central claim and of equal training: their sizes, images and arms."""

from pathlib import Path

import numpy as np

from experiments.configs.feddecorr import base as feddecorr
from experiments.configs.rank import central, equal_training
from experiments.study.resolving import resolve
from fedjax_collapse.data import sources


def test_the_large_version_is_as_published_and_trains_as_many_samples_as_it_says():
    published = {name: arm.get("methods", {}) for name, arm in feddecorr.WITH_AND_WITHOUT.items()}
    cells = resolve(central.get_config("gpu"), Path()).cells
    assert [(cell.values["partition"]["alpha"], cell.arm) for cell in cells] == [
        (alpha, arm) for alpha in (0.05, 0.5) for arm in ("fedavg", "fedavg_decorr")
    ]
    for _, arm, values in cells:
        assert values["methods"] == published[arm] and values["network"] == {"name": "mobilenet_v2"}
        assert values["rounds"] * values["training"]["epochs"] * 4000 == 1_200_000
        assert values["training"]["weight_decay"] == 1e-5 and values["training"]["augmentation"] == "none"


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


def test_equal_training_is_of_14_pairs_that_differ_in_numerics_alone():
    pairs = []
    for arg in ("digits", "mnist5k"):
        config = equal_training.get_config(arg)
        cells = resolve(config, Path()).cells
        of_float32 = {cell.setting: cell.values for cell in cells if cell.arm == "float32"}
        pairs += [
            (cell.values["data"]["source"], seed) for cell in cells if cell.arm == "bfloat16" for seed in config.seeds
        ]
        for setting, arm, values in cells:
            assert {key for key in values if values[key] != of_float32[setting][key]} <= {"network"}
            assert values["network"].items() > of_float32[setting]["network"].items() or arm == "float32"
    assert len(pairs) == 14 and pairs.count(("mnist5k", 1)) == pairs.count(("digits", 4)) == 2
