"""Tables as Markdown, LaTeX and CSV, with special characters in names of arms, settings and studies escaped."""

import csv
import html
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_FORMULA = tuple("=+-@\t\r\n")  # first characters of a cell that a spreadsheet interprets as a formula
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # which would be an argument of a preceding \\
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "`": "\\textasciigrave{}"},
    **{"±": "$\\pm$", "≈": "$\\approx$", "≠": "$\\neq$", "−": "$-$", "|": "$|$", "<": "$<$", ">": "$>$"},
}
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")  # also _, but not within a word


class Bold(str):
    """The text of a cell that is set in bold."""

    def __html__(self) -> str:
        """Returns the cell of a page, as templates ask for it."""
        return f"<b>{html.escape(self)}</b>"


def markdown(rows: Sequence[Sequence[str]], num_labels: int = 1) -> str:
    """Returns heading and rows as a table whose first columns are labels and the others numbers."""
    heading, *rest = (list(map(in_markdown, row)) for row in rows)
    lines = [heading, [*["---"] * num_labels, *["---:"] * (len(heading) - num_labels)], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows: Sequence[Sequence[str]], num_labels: int = 1) -> str:
    """Returns the table as a ``tabular`` environment, with the rules of booktabs."""
    heading, *rest = (" & ".join(map(in_latex, row)) + " \\\\" for row in rows)
    columns = "l" * num_labels + "r" * (len(rows[0]) - num_labels)
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", heading, "\\midrule", *rest, "\\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}", ""])


def csv_text(rows: Iterable[Iterable[Any]], form: str = "") -> str:
    """Returns heading and rows as a CSV file, with floats in the format ``form``, by default with all their digits.

    Numbers that are not finite are empty; text that a spreadsheet would interpret as a formula gets a leading '.
    """

    def written(cell):
        if isinstance(cell, float):  # np.float64 is one
            return f"{cell:{form}}" if math.isfinite(cell) else ""
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([written(cell) for cell in row] for row in rows)
    return out.getvalue()


def name_of(path: Path) -> str:
    """Returns the name of a file or folder as text, decoded as UTF-8 in any locale; other bytes as escapes."""
    return os.fsencode(path.name).decode(errors="backslashreplace")


def in_markdown(text: str) -> str:
    """Escapes HTML and markup, and makes it one line."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", "".join(_HTML.get(character, character) for character in _in_one_line(text)))
    return f"**{escaped}**" if isinstance(text, Bold) else escaped


def in_latex(text: str) -> str:
    """Escapes commands, and makes it one line."""
    escaped = "".join(_LATEX.get(character, character) for character in _in_one_line(text))
    return f"\\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped


def _in_one_line(text):
    return "".join(character if character.isprintable() else " " for character in text)
