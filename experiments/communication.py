"""Prints how many numbers clients and server exchange, without training: python experiments/communication.py
--config=FILE[:arg] [--config.key=value] [--setting=S,T] [--arm=A,B]

A row for each arm in each setting; ``fedjax_collapse/communication.py`` says what counts. ``down`` and ``up`` are those
of one client in a round: of the model (params and running statistics), and what methods add. ``state dict`` is the
model with a counter for each layer with running statistics, as PyTorch has it and published tables count; ``paper``,
if the config has its numbers, is that and prototypes, as printed there. ``cohort``: in a round in both directions, of
all its clients. ``kept``: what a client stores between its rounds. Data are read, for their shapes. Exit status: 0, or
2 for wrong input (one line says what).
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone works without being installed

if __name__ == "__main__":  # before the imports, of which one may be missing
    from experiments.early import check_packages

    check_packages()

from ml_collections import ConfigDict

from experiments import build, launch
from experiments.arms import as_declared, described, resolve_cell
from experiments.cells import setting_and_arm
from experiments.console import Console
from experiments.metrics import show_number
from experiments.paper import paper_of
from experiments.preparing import Examples
from experiments.reporting.table import paper_note
from experiments.study import choose_runs
from fedjax_collapse.communication import Communication, communication
from fedjax_collapse.data import Federation
from fedjax_collapse.records import UserError

HEADING = ["cell", "down: model", "methods", "up: model", "methods", "state dict", "cohort", "kept"]


def main(arguments: list[str]) -> int:
    """The exit status."""
    try:
        options = launch.parse(arguments)
        found = counted(options.config, options.arm, options.setting)
        rows, console = [HEADING, *(_row(cell, *numbers) for cell, *numbers in found)], Console()
        paper = paper_of(as_declared(options.config), counted=True)
        console.print_rows(_with_paper(rows, paper) if paper else rows)
        if paper:
            console.note(f"Paper: {paper_note(paper)}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def counted(
    config: ConfigDict, arms: tuple[str, ...] | None = None, settings: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Communication, int]]:
    """Of each cell its name, what a client exchanges in a round, and how many clients take part in one.

    Raises:
        UserError: there is no such arm or setting, or what a cell says makes no sense.
    """
    names = choose_runs(config, arms, tuple(config.seeds)[:1], settings)
    configs = {cell: resolve_cell(config, cell) for cell, _ in names}
    examples = Examples(configs, tuple(config.seeds)[:1])
    for cell, seed in names:
        federation = examples.of(setting_and_arm(cell)[0])[cell][seed]
        try:
            yield cell, *_of_cell(configs[cell], federation)
        except UserError as error:
            raise UserError(f"{described(cell)}: {error}") from error


def _of_cell(config: ConfigDict, federation: Federation) -> tuple[Communication, int]:
    found = communication(build.algorithm(config), build.model(config, federation), federation.train)
    return found, build.schedule(config).rule.cohort_size(config.clients)


def _row(cell, found, cohort_size):
    both = [[found.of_model(way), found.of_methods(way)] for way in ("down", "up")]
    cohort = cohort_size * sum(map(sum, both))
    numbers = [*both[0], *both[1], found.of_model("up") + found.counters, cohort, found.kept]
    return [cell, *(f"{value:,}" for value in numbers)]


def _with_paper(rows, paper):
    """The heading and rows with a column of its numbers behind that of state dicts."""
    place = HEADING.index("state dict") + 1
    cells = [setting_and_arm(row[0]) for row in rows[1:]]
    numbers = [show_number(paper.values.get(setting, {}).get(arm), ",.0f", "") for setting, arm in cells]
    return [[*row[:place], text, *row[place:]] for row, text in zip(rows, ["paper", *numbers], strict=True)]


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ``| head``
    sys.exit(main(sys.argv[1:]))
