"""The launcher, ``experiments/launch.py``, as a process that makes the figures of its page without rendering them."""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCHER = [sys.executable, str(Path(__file__).resolve())]


def svg(figure, *names):
    """Instead of the figure as an element of a page: to lay it out and to render it takes longer than to train."""
    return "<svg></svg>"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from fedjax_collapse.results.plot import drawing

    drawing.svg = svg
    runpy.run_path(str(ROOT / "experiments" / "launch.py"), run_name="__main__")
