"""Shared parts of the configs of published tables and figures: data, the sizes of each, and a paper's numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_collapse.config.base import get_config as base_config
from fedjax_collapse.config.cells import merged
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.records import UserError

DIGITS = dict(source="digits")
# generated, without downloads; a hundred classes replace CIFAR100 and Tiny-ImageNet, domains replace photographs
GLYPHS = dict(source="glyphs", num_classes=10, image_size=16, channels=1, train_size=5000, test_size=1000)
GLYPHS_100 = GLYPHS | dict(num_classes=100)
_LOOKS = ("clean", "coloured", "outline", "textured")
DOMAINS = GLYPHS | dict(domains=_LOOKS, train_size=500, test_size=250, channels=3)
_FEW = dict(train_size=1500, test_size=200)  # glyphs of ``smoke``

Changes = Mapping[str, Any]  # values by config key; nested dicts are merged, as in a setting
Rows = Mapping[str, Sequence[float | None]]  # of a table, by arm
_NONE: Mapping = MappingProxyType({})


class Paper(NamedTuple):
    """The common values of the studies of a paper."""

    shared: Changes  # of both versions; these replace the base config's values whole
    full: Changes  # the published setting
    offline: Changes  # changes that a CPU can train, on data of an installed package
    smoke_network: Changes

    def study(
        self,
        *,
        arms: Mapping[str, Changes],
        settings: Mapping[str, Changes],
        offline_settings: Mapping[str, Changes],
        smoke: Sequence[str],
        small: str = "",
        smoke_settings: Mapping[str, Changes] | None = None,
        smoke_network: Changes | None = None,
        full: Changes = _NONE,
        offline: Changes = _NONE,
        paper: Changes = _NONE,
        offline_paper: Changes = _NONE,
        **both: Any,
    ) -> Callable[..., ConfigDict]:
        """Returns the ``get_config`` of a table or figure, of a size: ``full``, ``offline``, ``small`` or ``smoke``.

        Args:
            arms: As ``config.arms``. Changes of settings in other arms are left out.
            settings: Those of the published version.
            offline_settings: Those of the version that a CPU can train.
            smoke: The settings of ``offline`` that are trained for two rounds with one seed: seconds.
            small: The setting of ``offline`` that ``small`` trains for 20 rounds with one seed: minutes, at most two
                million examples in all. Without it, there is no ``small``.
            smoke_settings: Settings to train instead.
            smoke_network: Their network instead of this paper's small network.
            full: Other changes of the published version.
            offline: Other changes of the version that a CPU can train.
            paper: The numbers to compare with, as arguments of ``_compared``.
            offline_paper: Those that are others offline.
            **both: Further changes of both versions.
        """
        defaults, both = plain(base_config()), {"arms": arms, **both}
        common = defaults | self.shared
        versions = {
            "full": _version(common, paper, self.full, both, full, dict(settings=settings)),
            "offline": _version(
                common, {**paper, **offline_paper}, self.offline, both, offline, {"settings": offline_settings}
            ),
        }
        if small:
            versions["small"] = _small(versions["offline"], small)
        chosen = _of_arms({name: (smoke_settings or offline_settings)[name] for name in smoke}, arms)
        versions["smoke"] = _smoke(versions["offline"], chosen, smoke_network or self.smoke_network)

        def get_config(arg: str = "offline") -> ConfigDict:
            if arg not in versions:
                raise UserError(f"expected one of {', '.join(versions)} after the file name")
            config = base_config()
            changed = {key: value for key, value in versions[arg].items() if value != defaults.get(key)}
            for key, value in plain(changed).items():  # a copy: settings share no dict that an override would change
                config[key] = value
            return config

        return get_config


def _compared(values, source, rows=_NONE, why="", spreads=_NONE, means=_NONE, columns=_NONE, **of_metric):
    """A paper's numbers as ``paper`` of a study with these values.

    Args:
        source: The paper and the table in it.
        rows: By arm, with a number for each setting; None is unknown. Columns beyond the study's are left out.
        why: Why ours are not comparable; empty where they are.
        spreads: The standard deviations in the same places; None if the paper has none.
        means: The rows of the study's means.
        columns: As ``config.paper.columns``; rows have them after the settings.
        **of_metric: ``metric`` and ``target``, if the numbers are not accuracies.
    """
    places = [*values["settings"], *columns]
    given = dict(why=why, spreads=spreads and by_setting(spreads, places), columns=columns) | of_metric
    given |= dict(values=by_setting(rows, places) | by_setting(means, values["means"]))
    return dict(source=source, comparable=not why) | {key: value for key, value in given.items() if value}


def crossed(rows: Mapping[str, Changes], columns: Mapping[str, Changes]) -> dict[str, dict]:
    """Returns settings ``<row>-<column>`` with the changes of every row, such as a data set, and of every column."""
    cells = [(row, column) for row in rows for column in columns]
    return {f"{row}-{column}": merged(rows[row], columns[column]) for row, column in cells}


def by_setting(rows: Rows, settings: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns a table of rows by arm and columns by setting in the form of ``config.paper``; None is unknown."""
    columns = enumerate(settings)
    return {name: {arm: row[i] for arm, row in rows.items() if row[i] is not None} for i, name in columns}


def _version(values, paper, *changes):
    for change in changes:
        values = merged(values, change)
    paper = _compared(values, **paper) if paper else {}
    return values | dict(paper=paper, settings=_of_arms(values["settings"], values["arms"]))


def _of_arms(settings, arms):
    """Returns the settings without changes of other arms."""
    found = {name: dict(setting) for name, setting in settings.items()}
    for setting in found.values():
        if own := {arm: changes for arm, changes in setting.get("arms", {}).items() if arm in arms}:
            setting["arms"] = own
        else:
            setting.pop("arms", None)
    return found


def _small(values, setting):
    """Twenty rounds with one seed in this setting, with the paper's numbers for it."""
    paper = dict(values["paper"])
    paper |= {part: {setting: paper[part][setting]} for part in ("values", "spreads") if part in paper}
    only = dict(settings={setting: values["settings"][setting]}, means={}, paper=paper)
    return values | only | dict(rounds=20, seeds=(0,))


def _smoke(values, settings, network):
    """Two rounds of one epoch with one seed in these settings, with few examples and that network."""
    return values | dict(
        settings={name: _without_rounds(setting) for name, setting in settings.items()},
        data=_few_examples(values["data"]),
        training=values["training"] | dict(epochs=1),
        network=network,
        **dict(rounds=2, evaluate_every=1, seeds=(0,), paper={}, means={}),
    )


def _without_rounds(setting):
    setting = {key: value for key, value in setting.items() if key != "rounds"}
    if "data" in setting:
        setting["data"] = _few_examples(setting["data"])
    return setting


def _few_examples(data):
    return data | _FEW if data.get("source") == "glyphs" else data
