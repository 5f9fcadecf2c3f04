"""Resolves and checks a study: its cells, each with all its values, and its runs."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.config.cells import OF_STUDY, CellName, RunName, arms_of, cells_of, merged, names_in, settings_of
from experiments.config.names import check_key, check_name
from experiments.config.parsing import Options
from experiments.config.plain_values import plain
from experiments.config.validation import check_keys, check_study
from experiments.folder import run_folder
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import check_value


class Cell(NamedTuple):
    """An arm in a setting, and the values that all its runs have in common."""

    setting: str  # empty if the study has none
    arm: str
    values: Mapping[str, Any]  # of every key of the config, except for those that define the cells

    @property
    def name(self) -> str:
        return str(CellName(self.setting, self.arm))

    def __str__(self) -> str:
        return _described(self.setting, self.arm)


class RunSpec(NamedTuple):
    """A run of a study: its cell, its seed, and its folder."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def name(self) -> RunName:
        return RunName(self.cell.name, self.seed)

    def __str__(self) -> str:
        return str(self.name)


class StudySpec(NamedTuple):
    """A study: its config as declared, its folder, all its cells, and the selected runs."""

    config: Mapping[str, Any]
    folder: Path
    cells: tuple[Cell, ...]
    runs: tuple[RunSpec, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds of the config."""
        return self.config["seeds"]


def resolve(
    config: ConfigDict | Mapping[str, Any],
    folder: Path,
    arms: str | Collection[str] | None = None,
    seeds: Collection[int] | None = None,
    settings: str | Collection[str] | None = None,
) -> StudySpec:
    """Returns the study of a config in a folder, with the runs of these arms, seeds and settings, by default all.

    Runs are in the order in which the config declares them; names may be given as a text with commas.

    Raises:
        UserError: the config or one of its cells is invalid, or it has no such arm, seed or setting.
    """
    config = plain(config)
    check_study(config)
    arms = _chosen("arm", arms, tuple(arms_of(config)))
    seeds = _chosen("seed", seeds, config["seeds"])
    settings = _chosen("setting", settings, tuple(settings_of(config)))
    names = cells_of(config)
    cells = tuple(Cell(name.setting, name.arm, resolve_arm(config, name.arm, name.setting)) for name in names)
    selected = [cell for cell in cells if cell.setting in settings and cell.arm in arms]
    runs = [RunSpec(cell, seed, run_folder(folder, (cell.name, seed))) for cell in selected for seed in seeds]
    return StudySpec(config, folder, cells, tuple(runs))


def resolve_one(options: Options) -> tuple[dict[str, Any], int]:
    """Returns the config of the chosen setting and arm, and the seed, by default the first, for a command without runs.

    Raises:
        UserError: the config is invalid, the setting is not chosen, or several of one kind are.
    """
    if options.workdir:
        raise UserError("--workdir is for training; use --out")
    config = options.config
    check_keys(config)
    arms, settings = arms_of(config), settings_of(config)
    if "" not in settings and not options.setting:  # without one it is no run of the study
        raise UserError(f"a setting has its own data and clients; choose one by --setting={' or '.join(settings)}")
    arm = _one("arm", names_in(options.arm, arms)) if options.arm else None
    setting = _one("setting", names_in(options.setting, settings)) if options.setting else ""
    seed = _one("seed", options.seed or config["seeds"][:1])
    check_name("seed", str(seed), map(str, config["seeds"]))
    return resolve_arm(config, arm, setting), seed


def resolve_arm(config: Mapping[str, Any], arm: str | None, setting: str = "") -> dict[str, Any]:
    """Returns the values of one arm in a setting.

    The arm's changes override those of the setting, which override the config; changes that the setting declares for
    the arm, in its own ``arms``, override all of them.

    Args:
        config: the config as declared.
        arm: None for the values that all arms of the setting have in common.
        setting: empty without settings.

    Raises:
        UserError: the arm, the setting, or a key that it changes does not exist, or the key must be the same for all.
    """
    arms, settings = arms_of(config), settings_of(config)
    check_name("setting", setting, settings)
    of_setting, of_arms = _divided(f"settings.{setting}", settings[setting], config["arms"])
    values = {key: value for key, value in config.items() if key not in OF_STUDY}
    values = _changed(values, f"settings.{setting}", of_setting, ("seeds",))
    if arm is not None:
        check_name("arm", arm, arms)
        fixed, declared = ("rounds", "seeds"), arms[arm].declared
        values = _changed(values, f"arms.{arm}", arms[arm].changes, fixed)
        values = _changed(values, f"settings.{setting}.arms.{declared}", of_arms.get(declared, {}), fixed)
    try:
        check_keys(values)
    except UserError as error:
        raise UserError(f"{_described(setting, arm)}: {error}") from error
    return values


def _described(setting, arm):
    """Returns the name of the cell for a message."""
    return ", ".join(f"{what} {name}" for what, name in (("setting", setting), ("arm", arm)) if name)


def _one(what, given):
    if len(given) != 1:
        raise UserError(f"{what}s: {', '.join(map(str, given)) or 'none'}; expected one")
    return given[0]


def _chosen(what, selected, declared):
    """Returns the selected names in the order in which they are declared, or all."""
    if isinstance(selected, str):
        selected = names_in(selected, declared)
    for item in selected or ():
        check_name(what, str(item), map(str, declared))
    return tuple(item for item in declared if item in selected) if selected else declared


def _divided(path, changes, declared):
    """Returns the changes of a setting for all arms, and those for single arms."""
    check_value(path, changes, dict)
    of_arms = changes.get("arms", {})
    check_value(f"{path}.arms", of_arms, dict)
    for arm in of_arms:
        check_name(f"arm in {path}.arms", arm, declared)
    return {key: value for key, value in changes.items() if key != "arms"}, of_arms


def _changed(values, path, changes, fixed):
    """Returns the values with the changes, which must not include keys that are fixed for all."""
    check_value(path, changes, dict)
    for key in changes:
        check_key(f"key in {path}", key, [*values, *OF_STUDY])
        if key in (*fixed, *OF_STUDY):
            what = path.split(".")[0]
            raise UserError(f"{path}.{key}: all {what} of a study have the same {key}; set config.{key}")
    return merged(values, changes)
