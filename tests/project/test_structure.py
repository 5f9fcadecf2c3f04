"""The structure of the code: imports between rooms go down, rooms are small, and none grows unnoticed."""

import ast
import configparser
import io
import tokenize
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {  # from below: a room imports those before it only
    "fedjax_collapse": (
        "core", "schema", "losses", "data", "nn", "optim", "methods", "training", "engine", "analysis",
        "run", "measurements", "config", "results", "__init__", "command",
    ),
    "experiments": (
        "machine", "parser", "waiting", "startup", "devices", "config_files", "configs", "study",
        "benchmarks", "commands", "notebooks", "launch",
    ),
}  # fmt: skip
PROGRAMS = {"command"}  # of the library, which the programs of experiments may import
FAMILIES = ("fedjax_collapse/methods", "fedjax_collapse/nn/networks")  # of classes that are found by their files
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def files(place):
    return sorted(path for path in (ROOT / place).rglob("*.py"))


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module):
    package, *rest = module.split(".")
    return package, rest[0] if rest else "__init__"


def imported(path):
    """The modules, or names in modules, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", ROOMS)
def test_imports_go_down(package):
    order, up = ROOMS[package], []
    assert {room_of(module_of(path))[1] for path in files(package)} - {"__init__"} <= set(order)
    for path in files(package):
        _, room = room_of(module_of(path))
        for name in imported(path):
            other, there = room_of(name)
            if other == "experiments" and package == "fedjax_collapse":
                up.append((module_of(path), name))
            if other != package or there not in order or room == "__init__":
                continue
            is_of_all = package == "fedjax_collapse" and there == "__init__"
            if order.index(there) > order.index(room) and not is_of_all:
                up.append((module_of(path), name))
    assert up == []


def test_rooms_have_few_entries():
    """At most 15 in a folder, and 20 in a family of classes; configs are left out."""
    for package in ROOMS:
        for folder in {path.parent for path in files(package)}:
            place = folder.relative_to(ROOT).as_posix()
            entries = [e for e in folder.iterdir() if e.name not in ("__init__.py", "__pycache__", "py.typed")]
            most = 20 if place.startswith(FAMILIES) else 15
            assert len(entries) <= most or place.startswith("experiments/configs"), place


def code_of(text):
    """The tokens of code: neither comments, nor docstrings and other texts that are statements."""
    tokens, starts = [], True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NO_CODE:
            starts = starts or token.type == tokenize.NEWLINE
        elif token.type == tokenize.STRING and starts:
            starts = False
        else:
            tokens.append(token)
            starts = False
    return tokens


def size(place):
    """Lines with code, and tokens, of a file or folder."""
    path = ROOT / place
    tokens = [code_of(file.read_text()) for file in ([path] if path.is_file() else files(place))]
    lines = [{line for token in of for line in range(token.start[0], token.end[0] + 1)} for of in tokens]
    return sum(map(len, lines)), sum(map(len, tokens))


def test_no_room_grows_unnoticed():
    """A change that needs more than the ceiling raises it in setup.cfg, and says in its commit why."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    ceilings = {place: tuple(map(int, value.split())) for place, value in metadata["ceilings"].items()}
    rooms = [p for package in ROOMS for p in (ROOT / package).iterdir() if p.is_dir() and p.name != "__pycache__"]
    rooms = {path.relative_to(ROOT).as_posix() for path in rooms} | {"tests"}
    assert ceilings.keys() == rooms
    above = {place: size(place) for place in ceilings if np.any(np.greater(size(place), ceilings[place]))}
    assert above == {}


def test_a_line_of_code_is_counted_once():
    text = '"""Doc."""\n\n\ndef f(a):\n    """Doc."""\n    # a comment\n    return (\n        a, "text"\n    )\n'
    assert len(code_of(text)) == 12 and {token.start[0] for token in code_of(text)} == {4, 7, 8, 9}
