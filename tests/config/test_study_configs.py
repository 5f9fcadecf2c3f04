"""The configs of studies beyond the papers' tables: of rank and accuracy, personal models, and adapters."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import check

from experiments.config_files import CONFIGS, load_config
from experiments.configs.adapters import rank_collapse, vit_tables
from experiments.configs.rank import central
from experiments.study.resolving import resolve
from fedjax_collapse.config import build
from fedjax_collapse.core.masks import by_path
from fedjax_collapse.data import sources
from fedjax_collapse.results.paper import paper_of


def test_the_study_of_rank_collapse():
    """Every arm has adapters of one scale, and the mixed ranks are those of the clients."""
    study = resolve(rank_collapse.get_config(), Path())
    assert list(study.config["settings"]) == [
        f"{p}-lr {rate}" for p in rank_collapse.DATA for rate in ("0.5", "1", "0.2, 24 steps")
    ]
    for values in _of_every_network(study):
        adapters = build.model(values, stand_in(10, (28, 28, 1))).adapters
        assert adapters.scale(2) == adapters.scale(adapters.rank) == 1
    for cell in study.cells:
        algorithm = build.algorithm(cell.values)
        assert algorithm.training.freeze.startswith("base")
        for method in algorithm.methods.values():
            ranks = getattr(method, "ranks", rank_collapse.RANKS)
            assert ranks == rank_collapse.RANKS and len(ranks) == cell.values["clients"]
    smoke = rank_collapse.get_config("smoke")
    assert smoke.settings.shifted.network.weights == "" and smoke.rounds == 2
    assert set(smoke.arms) < set(rank_collapse.ARMS)


@pytest.mark.parametrize("arg", vit_tables.STUDIES)
def test_published_settings_are_made_without_data(arg):
    """Every arm's algorithm and network, whose adapters are those of queries and values; the paper's numbers."""
    study = resolve(vit_tables.get_config(arg), Path())
    for values in _of_every_network(study):
        model = build.model(values, stand_in(100, (224, 224, 3)))
        build.algorithm(values).check(model)
        trained = [path for path in by_path(model.variable_shapes().params) if path.endswith("lora_a")]
        assert len(trained) == 2 * model.module.dimensions()[1]
    paper = paper_of(study.config)
    assert not paper.comparable and list(paper.values) == list(study.config["settings"])
    assert all(set(of_arms) <= set(study.config["arms"]) for of_arms in paper.values.values())


def _of_every_network(study):
    """Values of a cell with each network, which starts from no file."""
    cells = [cell.values for cell in study.cells]
    networks = {repr(values["network"]): values for values in cells}
    return [{**values, "network": {**values["network"], "weights": ""}} for values in networks.values()]


def stand_in(num_classes, shape):
    return SimpleNamespace(num_classes=num_classes, input_shape=shape, input_dtype=float, task="classification")


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


def test_a_config_that_is_not_there():
    panel = f"{CONFIGS / 'collapse_panel.py'}:missing.py:x"
    check(r"^collapse_panel\.py:missing\.py:x: missing\.py: no such file; ", load_config, panel)
