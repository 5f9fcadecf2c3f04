"""Equations of the pages, LaTeX as ``$...$`` and ``$$...$$``, as MathML, which browsers render without a script.

A hook of mkdocs. Code is left alone. An equation that cannot be converted is a warning, which stops a strict build.
"""

import logging
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
        if len(text) > 1 and element.tag in ("mi", "mo"):  # log, max: the space about them is not the browser's
            element.tag = "mo"
            element.attrib.update(lspace="0.1em", rspace="0.1em")
        element.text = AtomicString(text)  # not Markdown
    return math


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
