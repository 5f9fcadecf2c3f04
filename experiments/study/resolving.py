"""Resolves a study: its config, its folder, its cells, and the runs that a command selects."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.study.parsing import Options
from fedjax_collapse.config.cells import RunName, arms_of, cells_of, names_in, settings_of
from fedjax_collapse.config.folder import METRICS, run_folder
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import Cell, check_keys, check_study, resolve_arm
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import last_row
from fedjax_collapse.results.paper import check_paper
from fedjax_collapse.schema.names import check_name


class RunSpec(NamedTuple):
    """A run of a study: its cell, its seed, and its folder."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def name(self) -> RunName:
        return RunName(self.cell.name, self.seed)

    @property
    def last_round(self) -> int:
        """The last evaluated round in its folder; 0 before the first."""
        return last_row(self.folder / METRICS).get("round", 0)

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
    check_paper(config, arms_of(config))
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
