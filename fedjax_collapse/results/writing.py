"""Tables as Markdown, LaTeX and CSV, with special characters in names of arms, settings and studies escaped."""

import html
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_collapse.results.annotations import DataFrame

_FORMULA = tuple("=+-@\t\r\n")  # first characters of a cell that a spreadsheet interprets as a formula
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # which would be an argument of a preceding \\
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "`": "\\textasciigrave{}"},
    **{"±": "$\\pm$", "≈": "$\\approx$", "≠": "$\\neq$", "−": "$-$", "|": "$|$", "<": "$<$", ">": "$>$"},
}
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")  # also _, but not within a word


class Table(NamedTuple):
    """A table of text, with its heading and notes."""

    title: str
    frame: DataFrame
    notes: Sequence[str] = ()
    labels: int = 1  # the number of columns that name a row

    @property
    def rows(self) -> list[list[str]]:
        """The heading and the rows."""
        return [list(self.frame.columns), *self.frame.values.tolist()]


def text_table(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = (), labels: int = 1
) -> Table:
    """Returns a table of these rows, without empty notes."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(heading), dtype=object)
    return Table(title, frame, [note for note in notes if note], labels)


class Bold(str):
    """The text of a cell with the best value, in bold."""

    tag, latex, style = "b", "\\textbf", "bold"


class Alike(str):
    """The text of a cell that may be as good as the best, underlined."""

    tag, latex, style = "u", "\\underline", "underline"


class Grey(str):
    """The text of a cell that is not comparable with others, in grey on a page."""

    def __html__(self) -> str:
        return f'<span class="grey">{html.escape(self)}</span>'


for _kind in (Bold, Alike):
    _kind.__html__ = lambda self: f"<{self.tag}>{html.escape(self)}</{self.tag}>"


def markdown(table: Table) -> str:
    """Returns a Markdown table."""
    align = ["left"] * table.labels + ["right"] * (table.frame.shape[1] - table.labels)
    frame = table.frame.map(in_markdown).rename(columns=in_markdown)
    return frame.to_markdown(index=False, colalign=align, disable_numparse=True) + "\n"


def latex(table: Table) -> str:
    """Returns a LaTeX ``tabular`` with the rules of booktabs."""
    columns = "l" * table.labels + "r" * (table.frame.shape[1] - table.labels)
    frame = table.frame.map(in_latex).rename(columns=in_latex)
    return frame.to_latex(index=False, escape=False, column_format=columns)


def csv_text(frame: DataFrame, form: str | None = "%.6g") -> str:
    """Returns a CSV file with floats in this format, by default of six digits; all digits without a format.

    Numbers that are not finite are empty; text that a spreadsheet would interpret as a formula gets a leading '.
    """
    safe = frame.map(_safe).rename(columns=_safe)
    return safe.to_csv(index=False, float_format=form, lineterminator="\n")


def _safe(cell):
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def in_markdown(text: str) -> str:
    """Escapes HTML and markup, and makes it one line."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", html.escape(in_one_line(text), quote=False))
    return f"**{escaped}**" if isinstance(text, Bold) else f"<u>{escaped}</u>" if isinstance(text, Alike) else escaped


def in_latex(text: str) -> str:
    """Escapes commands, and makes it one line."""
    escaped = in_one_line(text).translate(str.maketrans(_LATEX))
    return f"{text.latex}{{{escaped}}}" if isinstance(text, (Bold, Alike)) else escaped


def in_one_line(text: str) -> str:
    """Replaces control characters by spaces."""
    return "".join(character if character.isprintable() else " " for character in str(text))
