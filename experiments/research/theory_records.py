"""What the studies of ``theory.py`` receive and return."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Columns = Mapping[str, np.ndarray]  # of one length


class Options(NamedTuple):
    """The accuracy and the size of the studies."""

    steps: int  # of integration
    seeds: int  # repetitions: clients of each alpha, initial networks of each scale, runs of each arm


class Study(NamedTuple):
    """A figure of the command."""

    compute: Callable[[Options], Columns]
    draw: "Callable[[Columns], Figure]"
    say: Callable[[Columns], str]  # the main result in a line


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Returns the columns of rows that all have the same keys."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
