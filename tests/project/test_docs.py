"""The documentation: its links lead somewhere, its code runs, its commands and messages are those of the code."""

import argparse
import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import yaml

import fedjax_collapse
from experiments import launch
from experiments.commands import extract, show_partition
from experiments.configs import base
from experiments.study.resolving import resolve
from fedjax_collapse import Model
from fedjax_collapse.command import MOVED, PROGRAMS
from fedjax_collapse.config import build
from fedjax_collapse.config.keys import NETWORKS
from fedjax_collapse.core import masks
from fedjax_collapse.nn.sequences import TokenNetwork

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
BESIDE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/notebooks/README.md"]
PAGES = [*(ROOT / page for page in BESIDE), *DOCS]
TESTED_ELSEWHERE = ("README.md", "extending.md")  # tests/project/test_readme.py
CODE = [path for room in ("fedjax_collapse", "experiments") for path in (ROOT / room).rglob("*.py")]
SOURCES = "\n".join(path.read_text() for path in CODE)
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """Code of that language, and whether it is marked as not to be run."""
    return [(code, bool(mark)) for mark, found, code in BLOCK.findall(page.read_text()) if found == language]


def prose(page):
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def test_arrays_have_the_names_of_our_networks():
    """Paths of layers and arrays, in pages and in the code: each is in a network with its usual options."""
    layers = r"(?:Dense|Conv|BatchNorm|LayerNorm|LSTM|Embedding|block|stage)_\d\w*(?:/\w+)*"
    named = re.compile(rf"(?<![\w/.])(?:(?:params|batch_stats)/\w+(?:/\w+)*|{layers})(?![\w*{{/])")
    code = re.findall(r"`+[^`\n]*`+", "\n".join([SOURCES, *(page.read_text() for page in PAGES)]))
    names = {re.sub("/lora_[ab]$", "", path) for each in code for path in named.findall(each)}
    assert len(names) > 5
    tokens = dict(input_shape=(5,), input_dtype="int32")
    for network, kind in reversed(NETWORKS.items()):  # until each name is found
        shape = (64, 64, 3) if network == "alexnet" else (32, 32, 3)
        model = Model(kind(10), **tokens) if issubclass(kind, TokenNetwork) else Model(kind(10), shape)
        for path in masks.by_path(model.variable_shapes()._asdict()) if names else ():
            parts = path.split("/")
            names -= {"/".join(parts[start:end]) for start in (0, 1) for end in range(start, len(parts) + 1)}
    assert not names


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def without_code(page):
    return re.sub(r"`[^`]*`", "", prose(page))


def links(page):
    """Yields the file and the anchor of each link of a page to a file of the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = without_code(page)
    assert not re.search(r"^\[[^]]+\]:|<a |<img |\]\(/", text, re.MULTILINE)  # links of kinds that are not looked at
    for linked, anchor in links(page):
        assert linked.is_file(), linked
        assert not anchor or anchor in anchors(linked), (linked, anchor)


def test_the_readmes_table_of_files_names_files():
    section = (ROOT / "README.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    named = re.findall(r"`([^`]*)`", section)
    assert len(named) > 8 and [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("figure", sorted((ROOT / "docs").glob("*.svg")), ids=name)
def test_a_figure_that_is_400_pixels_wide_is_legible(figure):
    """Its texts, and matplotlib's letters, which are paths of size 100; superscripts (0.7) are too small."""
    text = figure.read_text()
    width = float(re.search(r'viewBox="\S+ \S+ (\S+)', text)[1])
    sizes = re.findall(r'font-size="([\d.]+)"', text) + [f"{s}e2" for s in re.findall(r"scale\((\S+) -", text)]
    assert min(map(float, sizes)) * 400 / width >= 9 and "scale(0.7)" not in text


def test_every_page_is_in_the_navigation_of_the_site():
    """And every notebook, of which ``docs/notebooks.py`` makes a page."""
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in DOCS}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "experiments/notebooks").glob("*.ipynb")}
    assert set(re.findall(r"[\w/]+\.md", text)) == pages | notebooks
    assert "\n  font: false\n" in text  # else a page asks for fonts from elsewhere


def check_arms(config):
    """What is checked of them without data."""
    config.arms = config.arms or {"fedavg": {}}
    for cell in resolve(config, Path()).cells:
        algorithm, clients = build.algorithm(cell.values), cell.values["clients"]
        algorithm.check()
        build.check_privacy(cell.values)
        cohort_size = build.schedule(cell.values).resolved(algorithm).rule.cohort_size(clients)
        for method in algorithm.methods.values():
            method.check_cohort(cohort_size, clients)


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("page", [page for page in DOCS if page.name not in TESTED_ELSEWHERE], ids=name)
def test_python_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"config": base.get_config()}
    for code, is_marked in blocks(page, "python"):
        if not is_marked:
            exec(compile(code, name(page), "exec"), names)
            check_arms(names["config"].copy_and_resolve_references())


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page):
    """Python is run, of the programs of this project at least the arguments are read; ``<!-- not run: ... -->``."""
    found = BLOCK.findall(page.read_text())
    assert page.read_text().count("```") == 2 * len(found)
    for mark, language, code in found:
        is_run = not language or (language == "python" and page in (ROOT / "README.md", *DOCS))
        is_read = language == "bash" and all(map(PROGRAM.match, code.replace("\\\n", "").splitlines()))
        assert is_run or is_read or mark, code
        if language == "yaml":
            yaml.safe_load(code)


ENTRY_POINTS = [
    fedjax_collapse.simulate,
    fedjax_collapse.load_run,
    fedjax_collapse.study,
    fedjax_collapse.Federation.from_source,
    fedjax_collapse.partition.dirichlet,
    fedjax_collapse.Model,
    fedjax_collapse.LocalTraining,
    fedjax_collapse.FedAvg,
    fedjax_collapse.Participation,
]


def test_pages_of_the_api_name_what_there_is():
    pages = (page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    assert [pkgutil.resolve_name(name) for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


@pytest.mark.parametrize("made", ENTRY_POINTS, ids=lambda made: made.__qualname__)
def test_examples_in_docstrings(made):
    names = {"jax": jax, "np": np, "optax": optax, **vars(fedjax_collapse)}
    [example] = doctest.DocTestFinder(recurse=False).find(made, made.__name__, globs=names)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


# programs whose configs absl parses
READERS = {"launch": launch, "partition": show_partition, "extract": extract, "communication": launch}
PROGRAM = re.compile(r"(?:\.venv/bin/)?(?:fedjax-collapse |python3? experiments/)([\w-]+)(?:\.py\b)?")


def commands(page):
    """Names of programs and their arguments, in blocks and within the text; up to a comment or another command."""
    blocks = [line for *_, code in BLOCK.findall(page.read_text()) for line in code.replace("\\\n", "").splitlines()]
    for text in (*blocks, *re.findall(r"`([^`]+)`", prose(page))):
        for found in PROGRAM.finditer(text):
            arguments = re.split(r" # |[>|;]|\[|&&", text[found.end() :])[0]
            yield found[1], shlex.split(arguments.replace("\\$", "$").rstrip().removesuffix('"'), comments=True)


def fill(argument):
    """With a value where the page has none; "" where that may be anything."""
    if argument.startswith("--config=") and argument.endswith(("...", "FILE")):
        return "--config=quickstart"
    return "" if argument.endswith("...") else argument.replace("$study", "dirichlet_10")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_read_by_their_programs(page, tmp_path, monkeypatch):
    """The files that they name are there, and what comes behind is as the programs expect it."""
    files = re.findall(r"\b(?:tests/)?(?:experiments|fedjax_collapse)/[\w/]+\.\w+", page.read_text())
    missing = {file for file in files if not re.search("my_name|feature_norm", file) and not (ROOT / file).exists()}
    assert not missing

    class Read(Exception):
        pass

    def parse_and_end(*arguments, parse=argparse.ArgumentParser.parse_args):
        raise Read(parse(*arguments))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    for program, arguments in commands(page):
        arguments = [filled for filled in map(fill, arguments) if filled]
        if page.name == "CHANGELOG.md" and program in MOVED:
            continue
        assert program in PROGRAMS
        if not arguments or arguments[0].startswith("--help"):
            continue
        if reader := READERS.get(program):
            reader.parse(arguments)
        else:
            with pytest.raises(Read):
                importlib.import_module(f"experiments.{PROGRAMS[program][0]}").main(arguments)


def test_messages_of_the_troubleshooting_page_are_said():
    """Each quoted message, but for what stands at its dots, is text of the code."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert len(rows) >= 12
    plain = re.sub(r'"\n\s+f?"', "", SOURCES)
    for message in re.findall(r"`([^`]+)`", "\n".join(rows)):
        for part in filter(None, map(str.strip, message.split("..."))):
            assert part.strip(" :,") in plain, message


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_a_page_names_are_there(page):
    """Each word behind ``-k`` is in the name of a test of the file."""
    for file, quoted, plain in re.findall(r"\b(test_\w{2,}\.py)(?: -k (?:\"([^\"]+)\"|(\w+)))?", page.read_text()):
        (path,) = (ROOT / "tests").rglob(file)
        names = " ".join(re.findall(r"\bdef (test_\w+)", path.read_text())).lower()
        words = set((quoted or plain).lower().split()) - {"or", "and", "not"}
        assert all(word in names for word in words), (file, words)
