"""The progress of a run: one line that is updated, on a terminal or in a notebook; elsewhere a line per evaluation."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.runs import Row, Run


@contextlib.contextmanager
def show_progress(run: Run, model: Model, rounds: int) -> Iterator[Callable[[Row, Row], None]]:
    """Shows that a run is compiling, and yields a listener that shows its last evaluation.

    The line has the round, the score, the effective rank of the features, and the samples trained per second. It is on
    standard error, or in the output of a notebook's cell.
    """
    name = run.name or (Path(str(run.folder)).absolute().name if run.folder else "run")
    with _line() as show:
        show(f"{name}: compiling")
        evaluated = []

        def update(row, timing):
            evaluated.append(row["round"])
            metric, rank, speed = model.task.metric, row["effective_rank"], timing["samples_per_second"]
            score = f"{100 * row[metric]:.1f} %" if metric == "accuracy" else f"{row[metric]:.4g}"
            scores = f"{metric} {score}, effective rank {rank:.1f}, {speed:,.0f} samples/s"
            show(f"{name}: round {row['round']}/{rounds}, {scores}")

        yield update
        if not evaluated:
            show(f"{name}: no further evaluation")


@contextlib.contextmanager
def _line():
    """Yields a function that replaces the line, or prints another one where none can be replaced."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False)
    if console.is_jupyter:
        from IPython.display import display  # rich would need ipywidgets

        output = display({"text/plain": ""}, raw=True, display_id=True)
        yield lambda text: output.update({"text/plain": text}, raw=True)
    elif console.is_interactive:
        with Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:
            yield lambda text: live.update(text, refresh=True)
    else:
        yield lambda text: print(text, file=sys.stderr, flush=True)
