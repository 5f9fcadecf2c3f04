"""The progress of a run: a bar on a terminal, a line that is updated in a notebook; elsewhere a line per evaluation."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import rich

from fedjax_collapse.core.terminal import Printer
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.runs import Row, Run


@contextlib.contextmanager
def show_progress(run: Run, model: Model, rounds: int) -> Iterator[Callable[[Row, Row], None]]:
    """Shows that a run is compiling, and yields a listener that shows its last evaluation.

    It shows the round, the score, the effective rank of the features, and the samples trained per second, on standard
    error or in the output of a notebook's cell.
    """
    name = run.name or (Path(str(run.folder)).absolute().name if run.folder else "run")
    printer = Printer(sys.stderr)
    bar, say = printer.bars.add_task(printer.text(name), total=rounds, about=""), printer.note
    printer.bars.live.transient = False
    if rich.get_console().is_jupyter:
        from IPython.display import display  # rich would need ipywidgets

        output = display({"text/plain": ""}, raw=True, display_id=True)

        def say(text):
            output.update({"text/plain": text}, raw=True)

    def show(about, round=0):
        printer.bars.update(bar, completed=round, about=about, refresh=True)
        if not printer.is_live:
            say(f"{name}: {f'round {round}/{rounds}, ' * bool(round)}{about}")

    def update(row, timing):
        metric, rank, speed = model.task.metric, row["effective_rank"], timing["samples_per_second"]
        score = f"{100 * row[metric]:.1f} %" if metric == "accuracy" else f"{row[metric]:.4g}"
        show(f"{metric} {score}, effective rank {rank:.1f}, {speed:,.0f} samples/s", row["round"])

    with printer.bars:
        show("compiling")
        yield update
        if not printer.bars.tasks[0].completed:
            show("no further evaluation")
