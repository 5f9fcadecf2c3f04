"""Prints how many numbers clients and server exchange in a round, without training.

    fedjax-collapse communication --config=CONFIG[:arg] [--config.key=value] [--setting=S,T] [--arm=A,B]

The table has a row for each arm in each setting; ``fedjax_collapse.training.communication`` defines what is counted.
``down`` and ``up`` are the numbers that one client receives and sends in a round: the model (params and running
statistics), and what methods add. ``state dict`` is the model with a counter for each layer with running statistics, as
in PyTorch and in published tables; ``paper``, if the config has the paper's numbers, includes prototypes, as printed
there. ``cohort`` is the sum over a round's clients in both directions, ``kept`` what a client stores between rounds.
Data are read for their shapes. Exit status: 0, or 2 after a one-line message about wrong input.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments import waiting
from experiments.parser import Parser, reports_errors
from experiments.study import parsing
from experiments.study.preparing import Examples
from experiments.study.progress.console import Console
from experiments.study.resolving import StudySpec, resolve
from fedjax_collapse.config import build
from fedjax_collapse.config.resolving import Cell
from fedjax_collapse.results.metrics import show_number
from fedjax_collapse.results.paper import paper_of
from fedjax_collapse.results.tables import paper_note
from fedjax_collapse.schema.user_code import naming
from fedjax_collapse.training.communication import Communication, communication

HEADING = ["cell", "down: model", "methods", "up: model", "methods", "state dict", "cohort", "kept"]


@reports_errors
def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options, _ = parsing.parsed(arguments, command_line())
    study = resolve(options.config, Path(), options.arm, settings=options.setting)
    with waiting.wait(f"counting what {len(study.cells)} arms exchange", len(study.cells)) as advance:
        found = []
        for row in counted(study):
            found.append(row)
            advance()
    rows = [HEADING, *(_row(cell.name, *numbers) for cell, *numbers in found)]
    paper, console = paper_of(study.config, counted=True), Console()
    console.print_rows(_with_paper(rows, paper, [cell for cell, *_ in found]) if paper else rows)
    if paper:
        console.note(f"Paper: {paper_note(paper)}")
    return 0


def command_line() -> Parser:
    """Returns the parser of the options, which the launcher's own parser reads."""
    return parsing.command_line(__doc__, only=("arm", "setting"))


def counted(study: StudySpec) -> Iterator[tuple[Cell, Communication, int]]:
    """For each cell that has a run, the numbers that a client exchanges in a round, and the cohort's size.

    Raises:
        UserError: a cell is invalid.
    """
    examples = Examples(study.cells, study.seeds[:1])
    for cell in {run.cell.name: run.cell for run in study.runs}.values():
        values, federation = cell.values, examples.of(cell.setting)[cell.name][study.seeds[0]]
        with naming(cell):
            found = communication(build.algorithm(values), build.model(values, federation), federation.train)
            yield cell, found, build.schedule(values).rule.cohort_size(values["clients"])


def _row(cell, found, cohort_size):
    both = [[found.of_model(way), found.of_methods(way)] for way in ("down", "up")]
    cohort = cohort_size * sum(map(sum, both))
    numbers = [*both[0], *both[1], found.of_model("up") + found.counters, cohort, found.kept]
    return [cell, *(f"{value:,}" for value in numbers)]


def _with_paper(rows, paper, cells):
    """The heading and rows of these cells with a column of its numbers after the state dicts' column."""
    place = HEADING.index("state dict") + 1
    numbers = [show_number(paper.values.get(cell.setting, {}).get(cell.arm), ",.0f", "") for cell in cells]
    return [[*row[:place], text, *row[place:]] for row, text in zip(rows, ["paper", *numbers], strict=True)]
