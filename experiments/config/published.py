"""Shared parts of the configs of published tables and figures: the choice by argument, tables, small versions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from experiments.config.plain_values import plain
from experiments.configs import base

DIGITS = dict(source="digits")
# generated, without downloads; a hundred classes replace CIFAR100 and Tiny-ImageNet, domains replace photographs
GLYPHS = dict(source="glyphs", num_classes=10, image_size=16, channels=1, train_size=5000, test_size=1000)
GLYPHS_100 = GLYPHS | dict(num_classes=100)
_LOOKS = ("clean", "coloured", "outline", "textured")
DOMAINS = GLYPHS | dict(domains=_LOOKS, train_size=500, test_size=250, channels=3)
_SMALL = dict(train_size=1500, test_size=200)  # sizes of small versions with glyphs


def chosen(file: str, arg: str, makers: Mapping[str, Callable[[ConfigDict], None]]) -> ConfigDict:
    """Returns the base config, changed by the maker of that name.

    Raises:
        ValueError: there is no such maker.
    """
    if arg not in makers:
        raise ValueError(f"{file}:{arg}: expected one of {', '.join(makers)} after the file name")
    config = base.get_config()
    makers[arg](config)
    return config


def by_setting(rows: Mapping[str, Sequence[float | None]], settings: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns a table of rows by arm and columns by setting in the form of ``config.paper``; None is unknown."""
    columns = enumerate(settings)
    return {name: {arm: row[i] for arm, row in rows.items() if row[i] is not None} for i, name in columns}


def make_small(config: ConfigDict, settings: Sequence[str], **network: Any) -> None:
    """Reduces a config to seconds of work: two rounds of one epoch with one seed, few examples and that network."""
    every = plain(config)
    config.settings = {name: _small(every["settings"][name]) for name in settings}
    config.rounds, config.evaluate_every, config.seeds, config.paper, config.means = 2, 1, (0,), {}, {}
    config.data.update(_of_data(config.data))
    config.training.epochs = 1
    config.network = network or dict(name="small_cnn", channels=(16,))


def _small(changes):
    changes = {key: value for key, value in changes.items() if key != "rounds"}
    if "data" in changes:
        changes["data"] = changes["data"] | _of_data(changes["data"])
    return changes


def _of_data(data):
    return _SMALL if data.get("source") == "glyphs" else {}
