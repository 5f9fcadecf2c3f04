"""Text as it is in a file of another language, in which names of arms, settings and studies mean nothing."""

import os
import re
from pathlib import Path

_FORMULA = tuple("=+-@\t\r\n")  # beginnings of a cell that a spreadsheet takes for a formula
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # which a line that ends with \\ takes for its argument
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "`": "\\textasciigrave{}"},
    **{"±": "$\\pm$", "|": "$|$", "<": "$<$", ">": "$>$"},
}
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")  # also _, but not within a word


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
