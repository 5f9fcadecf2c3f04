"""Tables as Markdown, LaTeX and CSV, in which names of arms, settings and studies have no special meaning."""

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_FORMULA = tuple("=+-@\t\r\n")  # beginnings of a cell that a spreadsheet takes for a formula
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # which a line that ends with \\ takes for its argument
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "`": "\\textasciigrave{}"},
    **{"±": "$\\pm$", "|": "$|$", "<": "$<$", ">": "$>$"},
}
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")  # also _, but not within a word


def markdown(rows: Sequence[Sequence[str]], num_labels: int = 1) -> str:
    """Heading and rows as a table whose first columns are labels, and the others numbers."""
    heading, *rest = (list(map(in_markdown, row)) for row in rows)
    lines = [heading, [*["---"] * num_labels, *["---:"] * (len(heading) - num_labels)], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows: Sequence[Sequence[str]], num_labels: int = 1) -> str:
    """The same as a ``tabular`` environment, with the rules of booktabs."""
    heading, *rest = (" & ".join(map(in_latex, row)) + " \\\\" for row in rows)
    columns = "l" * num_labels + "r" * (len(rows[0]) - num_labels)
    lines = [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", heading, "\\midrule", *rest, "\\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}", ""])


def csv_text(rows: Iterable[Iterable[Any]], form: str = "") -> str:
    """Heading and rows as a CSV file, with floats in the format ``form``, by default with all their digits.

    Empty where a number is not finite; text that a spreadsheet would take for a formula has ' before it.
    """

    def written(cell):
        if isinstance(cell, float):  # np.float64 is one
            return f"{cell:{form}}" if math.isfinite(cell) else ""
        return in_csv(cell) if isinstance(cell, str) else cell

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([written(cell) for cell in row] for row in rows)
    return out.getvalue()


def name_of(path: Path) -> str:
    """The name of a file or folder as text, which is UTF-8 on the disk whatever the locale; other bytes as escapes."""
    return os.fsencode(path.name).decode(errors="backslashreplace")


def in_csv(text: str) -> str:
    """With ' before what a spreadsheet would take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def in_markdown(text: str) -> str:
    """In one line, without HTML and markup."""
    text = "".join(_HTML.get(character, character) for character in _in_one_line(text))
    return _MARKDOWN.sub(r"\\\g<0>", text)


def in_latex(text: str) -> str:
    """In one line, without commands."""
    return "".join(_LATEX.get(character, character) for character in _in_one_line(text))


def _in_one_line(text):
    return "".join(character if character.isprintable() else " " for character in text)
