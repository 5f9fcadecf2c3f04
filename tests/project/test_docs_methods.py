"""The page of methods: every method has a section with its options and their defaults, and its equations convert."""

import ast
import importlib
import re
import sys
from pathlib import Path

import markdown
import pytest
from conftest import cases

from experiments.commands import manual
from fedjax_collapse import UserError, methods
from fedjax_collapse.schema import discovery

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in re.split("^##+ ", PAGE, flags=re.MULTILINE)[1:])
PUBLIC = {name: found for name, found in vars(methods).items() if isinstance(found, type)}
BY_FILE = discovery.classes(methods, methods.Method)
METHODS = {name for name, found in PUBLIC.items() if issubclass(found, methods.Method)} - {"Method", "Regularizer"}


@pytest.fixture
def mathml(monkeypatch):
    """The hook of mkdocs."""
    monkeypatch.syspath_prepend(DOCS)
    yield importlib.import_module("mathml")
    del sys.modules["mathml"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_section_has_the_options_of_its_method(name):
    (marked,) = re.findall("^<!-- options of (.+) -->$", SECTIONS[name], re.MULTILINE)
    assert BY_FILE[marked] is PUBLIC[name]


def test_options_are_of_this_code(capsys, monkeypatch, tmp_path):
    """Else: fedjax-collapse manual --methods > methods.md && mv methods.md docs/methods.md"""
    assert manual.with_options(PAGE) == PAGE
    bare = re.sub(r"(?<= -->\n)(?:.+\n)+", "", PAGE)
    assert len(bare) < len(PAGE) and manual.with_options(bare) == PAGE
    assert manual.main(["--methods"]) == 0 and capsys.readouterr().out == PAGE
    with pytest.raises(UserError, match=r"unknown method .* 'feddecor': did you mean 'feddecorr'"):
        manual.with_options("<!-- options of feddecor -->\n")
    monkeypatch.setattr(manual, "_METHODS_PAGE", tmp_path / "methods.md")
    assert manual.main(["--methods"]) == 2 and "no such page" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(METHODS))
def test_config_makes_the_method(name):
    (call,) = re.findall(r"Config: .*?`methods=(dict\(.*?\))`", SECTIONS[name])
    configured = ast.parse(call, mode="eval").body.keywords
    (made,) = [
        PUBLIC[name](**{option.arg: ast.literal_eval(option.value) for option in entry.value.keywords})
        for entry in configured
        if BY_FILE[entry.arg] is PUBLIC[name]
    ]
    made.check()


def test_equations_convert(mathml, caplog):
    html = markdown.markdown(PAGE, extensions=[mathml.Equations()])
    assert not caplog.messages
    assert html.count("<math ") > 200
    assert "$" not in html


@cases(r"\frac{a", r"a & b", r"\unknown")
def test_an_equation_that_cannot_be_converted_is_named(latex, mathml, caplog):
    mathml.Equation.page = "page.md"
    markdown.markdown(f"an equation ${latex}$", extensions=[mathml.Equations()])
    (message,) = caplog.messages
    assert message.startswith(f"page.md: the equation {latex} cannot be converted to MathML: ")
