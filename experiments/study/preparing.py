"""Plans of the cells, and their federations, which are large, of one setting at a time."""

import contextlib
import gc
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax

from experiments.study.groups import Plan, make_plan, untraced_plan
from experiments.study.resolving import RunSpec
from experiments.waiting import Wait, unseen
from fedjax_collapse.config import build
from fedjax_collapse.config.resolving import Cell
from fedjax_collapse.data import Federation
from fedjax_collapse.schema.user_code import naming

_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
Federations = Mapping[str, Mapping[int, Federation]]  # by cell and seed


class Examples:
    """The federations of one setting at a time; those of the previous setting are freed first."""

    def __init__(self, cells: Iterable[Cell], seeds: Iterable[int]) -> None:
        self._cells, self._seeds = tuple(cells), seeds
        self._setting: str | None = None
        self._federations: Federations = {}

    def of(self, setting: str) -> Federations:
        """Returns the federations of every cell of the setting, with every seed.

        Raises:
            UserError: the data or the partition of one of them is invalid.
        """
        if setting != self._setting:
            if self._setting is not None:  # frees the federations, with the programs compiled for them
                self._setting, self._federations = None, {}
                jax.clear_caches()
            gc.collect()  # also what an earlier study in this process has left in cycles
            cells = [cell for cell in self._cells if cell.setting == setting]
            with naming(f"setting {setting}") if setting else contextlib.nullcontext():
                self._federations = federations_of(cells, self._seeds)
            self._setting = setting
        return self._federations


def release_programs() -> None:
    """Drops all compiled programs once they use half of the memory maps that Linux allows a process.

    Each uses hundreds of them, and a process without any left cannot compile and ends. So a study of many arms
    sometimes compiles again what it has compiled before. On other systems nothing is dropped.
    """
    with contextlib.suppress(OSError, ValueError):
        most = int(_MOST_MAPS.read_text())
        if _MAPS.read_bytes().count(b"\n") > most / 2:
            jax.clear_caches()
            gc.collect()


def by_setting(runs: Iterable[RunSpec]) -> dict[str, list[RunSpec]]:
    """Returns the runs by the setting of their cell."""
    divided: dict[str, list[RunSpec]] = {}
    for run in runs:
        divided.setdefault(run.cell.setting, []).append(run)
    return divided


def federations_of(cells: Iterable[Cell], seeds: Iterable[int]) -> Federations:
    """Returns the federations by cell and seed; cells with the same data and partition share theirs.

    Raises:
        UserError: one of them is invalid.
    """
    made: dict[str, dict[int, Federation]] = {}

    def shared(values):
        sections = [sorted(values[name].items(), key=str) for name in ("data", "partition", "own_tests")]
        key = repr([sections, values["clients"], values["engine"]["storage"]])
        if key not in made:
            made[key] = build.federations(values, seeds)
        return made[key]

    return {cell.name: shared(cell.values) for cell in cells}


def hashes_of(federations: Federations) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the SHA-256 of data and partition, by cell and seed."""
    different = {id(f): f for of_seed in federations.values() for f in of_seed.values()}
    hashes = {name: federation.hashes() for name, federation in different.items()}
    return {
        cell: {f"seed{seed}": hashes[id(federation)] for seed, federation in of_seed.items()}
        for cell, of_seed in federations.items()
    }


def check_privacy(cells: Iterable[Cell]) -> None:
    """Raises UserError if the privacy of one of the cells does not hold or cannot be accounted for; traces nothing.

    The noise that each epsilon needs is searched for once all are checked, which may take a minute.
    """
    cells = tuple(cells)
    searched = [cell for cell in cells if "epsilon" in cell.values["privacy"]]
    for check, checked in ((build.check_privacy, cells), (build.algorithm, searched)):
        for cell in checked:
            with naming(cell):
                check(cell.values)


def check_private_networks(cells: Iterable[Cell], federations: Federations, seed: int) -> None:
    """Raises UserError if the network of a private cell has parts that the noise does not cover, before tracing."""
    for cell in cells:
        if cell.values["privacy"]:
            plan = plan_of(cell, federations[cell.name][seed], None)
            with naming(cell):
                plan.algorithm.check(plan.model)


def plan_of(cell: Cell, federation: Federation, wait: Wait | None = unseen) -> Plan:
    """Returns the cell's plan, untraced if ``wait`` is None, which shows what takes long; errors name the cell."""
    with naming(cell):
        return make_plan(cell.values, federation, wait) if wait else untraced_plan(cell.values, federation)
