"""A selection of a study's results, which is both what a figure draws and the content of its CSV file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.results.formats import csv_text

MOST = 2_000_000  # values of a CSV file next to a report


class Selection(NamedTuple):
    """Rows with a heading. Numbers in files have five digits, and at most ``decimals`` decimals if that is given."""

    heading: Sequence[str]
    rows: Sequence[Sequence[Any]]
    decimals: int | None = None

    def by(self, *names: str) -> "dict[Any, Selection]":
        """Groups the rows by the values of these columns, which are removed; keys are values, or tuples of them."""
        places = [self.heading.index(name) for name in names]
        others = [i for i in range(len(self.heading)) if i not in places]
        parts: dict[Any, list] = {}
        for row in self.rows:
            key = tuple(row[i] for i in places)
            parts.setdefault(key if len(names) > 1 else key[0], []).append([row[i] for i in others])
        return {key: self._replace(heading=[self.heading[i] for i in others], rows=rows) for key, rows in parts.items()}

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column; None for every row if there is no such column."""
        place = self.heading.index(name) if name in self.heading else None
        return [None if place is None else row[place] for row in self.rows]

    def columns(self) -> list[np.ndarray]:
        """Returns an array of the values of each column."""
        return [np.array(values) for values in zip(*self.rows, strict=True)]

    def as_csv(self) -> str:
        """Returns the text of the CSV file; empty if it would be too long, or has no rows."""
        if not 0 < len(self.rows) * len(self.heading) <= MOST:
            return ""
        return csv_text([self.heading, *(map(self._rounded, row) for row in self.rows)], ".5g")

    def _rounded(self, value):
        if not isinstance(value, (float, np.floating)):
            return value
        return float(value) if self.decimals is None else round(float(value), self.decimals)
