"""Equations of the pages, LaTeX as ``$...$`` and ``$$...$$``, as MathML, which browsers render without a script.

A hook of mkdocs. Code is left alone. An equation that cannot be converted is a warning, which stops a strict build.
"""

import logging
from itertools import zip_longest
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.util import AtomicString

LOG = logging.getLogger("mkdocs.hooks.mathml")
DISPLAY = r"\$\$(.+?)\$\$"
INLINE = r"\$(?![\s$])([^$]+?)(?<!\s)\$(?!\d)"  # as on GitHub: "$5 or $6" is no equation
CHILDREN = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3}
BEFORE_ESCAPES = 185  # below code within the text (190), above backslashes and emphasis


class Equation(InlineProcessor):
    """Replaces one kind of equation; ``page`` is named in warnings."""

    page = ""

    def __init__(self, pattern, display):
        super().__init__(pattern)
        self.display = display

    def handleMatch(self, match, data):
        latex = match[1].strip()
        try:
            math = mathml(latex, self.display)
        except ValueError as error:
            LOG.warning("%s: the equation %s cannot be converted to MathML: %s", Equation.page, latex, error)
            return None, None, None
        return math, match.start(0), match.end(0)


def mathml(latex: str, display: str = "inline") -> ElementTree.Element:
    """Returns the equation as an element ``math``.

    Raises:
        ValueError: if braces or arguments are missing, or if a command is not known.
    """
    try:
        math = ElementTree.fromstring(convert(latex, display=display))
    except Exception as error:  # of many kinds, most without a message
        raise ValueError(f"{type(error).__name__} {error}".strip()) from error
    if latex.count("{") != latex.count("}"):
        raise ValueError("a brace is missing")
    for element in math.iter():
        element.tag = element.tag.rpartition("}")[2]  # HTML has no namespaces
        text = element.text or ""
        if len(element) < CHILDREN.get(element.tag, 0):
            raise ValueError("an argument is missing")
        if "\\" in text:
            raise ValueError(f"{text} is not known")
        element.text = AtomicString(text)  # not Markdown
    _set_space(math)
    return math


def _set_space(math):
    """Sets the space about functions, norms and signs as LaTeX does; browsers take them for binary operators."""
    for row in math.iter():
        before = None
        for element, after in zip_longest(row, row[1:]):
            if len(element.text or "") > 1 and element.tag in ("mi", "mo"):  # log, max
                follows_symbol = before is not None and before.tag != "mo"
                is_called = after is not None and after.text == "("
                element.tag = "mo"
                element.attrib.update(lspace="0.17em" if follows_symbol else "0", rspace="0" if is_called else "0.17em")
            elif element.text in ("|", "‖"):  # not as high as what is beside them
                element.attrib.update(stretchy="false", lspace="0", rspace="0")
            elif element.text == "−" and before is not None and before.tag == "mo" and before.text not in ")|‖":
                element.attrib.update(form="prefix", lspace="0", rspace="0")
            before = element


class Equations(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Equation(DISPLAY, "block"), "display_equation", BEFORE_ESCAPES + 1)
        md.inlinePatterns.register(Equation(INLINE, "inline"), "equation", BEFORE_ESCAPES)


def on_config(config):
    config.markdown_extensions.append(Equations())
    return config


def on_page_markdown(markdown, page, **_):
    Equation.page = page.file.src_uri
    return markdown
