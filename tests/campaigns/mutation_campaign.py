"""Changes the library in places that a seed chooses, and finds out whether the tests notice.

    python tests/campaigns/mutation_campaign.py [--number=60] [--seed=20261127] [--processes=2] [--list]
    python tests/campaigns/mutation_campaign.py --places=FILE

A place is a function and an expression in it, whatever its line and file. ``--list`` prints the places instead of
trying them; ``--places`` tries those of such a list, also in a version of the library that has moved functions. One
expression is changed there, in a copy of this clone: an operation to its opposite, a number by one, a sum to one of
its terms, the first two arguments of a call, if they are names, to each other. Tests run until one fails: the test
files of the same folder that import the changed module, or a name that it defines; what has the module's name in the
conformance of methods and in the rounds beside PyTorch; the other such files; then all of conformance and of the
rounds. Exit status: 0, or 1 if a change was not noticed, within ten minutes. At most one place is of each file.
"""

import argparse
import ast
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("losses", "methods", "training", "engine", "data", "run/privacy")
LEFT_OUT = {  # files, and functions in them, whose changes affect no result
    "fedjax_collapse/engine/timing.py": "it measures seconds",
}
GENERAL = ("tests/methods/test_conformance.py", "tests/training/test_round_reference.py")
_LONGEST = 600  # seconds that the tests of a change may take
_OPPOSITES = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<",
    ast.Eq: "!=", ast.NotEq: "==", ast.And: "or", ast.Or: "and",
}  # fmt: skip
_SYMMETRIC = {"minimum", "maximum", "min", "max", "allclose", "array_equal", "logical_and", "logical_or"}
_FUNCTIONS = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "any": "all", "all": "any"}


class Mutation(NamedTuple):
    """A change of one expression."""

    file: str  # from the root
    function: str
    before: str  # the expression, as ``ast.unparse`` writes it
    after: str
    start: int  # bytes of the file that ``after`` replaces
    end: int

    def __str__(self) -> str:
        return f"{self.file}, {self.place}"

    @property
    def place(self) -> str:
        """The place and the change, by which another version of the library has it, too."""
        return f"{self.function}: {self.before} -> {self.after}"


def mutations(root: Path) -> list[Mutation]:
    """Returns every mutation of the rooms."""
    files = sorted(file for room in ROOMS for file in (root / "fedjax_collapse" / room).rglob("*.py"))
    found = [mutation for file in files for mutation in _of_file(root, file)]
    return [each for each in found if not {each.file, f"{each.file}, {each.function}"} & LEFT_OUT.keys()]


def chosen(found: Sequence[Mutation], number: int, seed: int) -> list[Mutation]:
    """Returns the first so many, in an order that depends on the seed and on each place alone, one of each file."""

    def order(mutation):
        return hashlib.sha256(f"{seed}, {mutation}".encode()).digest()

    by_file: dict[str, Mutation] = {}
    for mutation in sorted(found, key=order):
        by_file.setdefault(mutation.file, mutation)
    return list(by_file.values())[:number]


def _of_file(root, file) -> Iterator[Mutation]:
    source = file.read_text(encoding="utf-8")
    starts = [0]  # of lines, in bytes, as the columns of a tree are
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for name, node in _expressions(ast.parse(source), ""):
        for changed in _changed(node):
            start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            yield Mutation(str(file.relative_to(root)), name, ast.unparse(node), changed, start, end)


def _expressions(tree, name):
    """Yields the expressions in functions, with the function's name; without annotations, defaults, and errors."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            for statement in child.body:
                yield from _expressions(ast.Module([statement], []), f"{name}.{child.name}".strip("."))
        elif not isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)):
            if name and isinstance(child, ast.expr):
                yield name, child
            yield from _expressions(child, name)


def _changed(node) -> Iterator[str]:
    """Yields the texts of what an expression may be changed to."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPPOSITES:
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        yield f"(({left}) {_OPPOSITES[type(node.op)]} ({right}))"
        if isinstance(node.op, (ast.Add, ast.Sub)):
            yield f"({left})"
            yield from _by_one(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITES:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        yield f"(({left}) {_OPPOSITES[type(node.ops[0])]} ({right}))"
        yield from _by_one(node)
    if isinstance(node, ast.BoolOp):
        yield "(" + f" {_OPPOSITES[type(node.op)]} ".join(f"({ast.unparse(value)})" for value in node.values) + ")"
    is_index = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)  # -1 is 1 in two dimensions
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)) and not is_index:
        yield f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Call):
        called, first = ast.unparse(node.func), node.args[:2]
        module, _, name = called.rpartition(".")
        if name in _FUNCTIONS and module in ("", "jnp", "np"):
            yield f"{module}{'.' * bool(module)}{_FUNCTIONS[name]}{ast.unparse(node)[len(called) :]}"
        are_alike = len(first) == 2 and all(isinstance(argument, (ast.Name, ast.Attribute)) for argument in first)
        if are_alike and name not in _SYMMETRIC:
            yield ast.unparse(ast.Call(node.func, [first[1], first[0], *node.args[2:]], node.keywords))


def _by_one(node):
    """Yields an operation or comparison whose last operand, a number, is larger by one."""
    last = node.right if isinstance(node, ast.BinOp) else node.comparators[0]
    if isinstance(last, ast.Constant) and type(last.value) is int:
        text = ast.unparse(node)
        yield f"({text[: len(text) - len(ast.unparse(last))]}{last.value + 1})"


def importing(root: Path, file: str) -> list[str]:
    """Returns the test files that import a module, or a name that it defines from a package that has it.

    What tests do not import, or should not by its name, is tested with the modules that import it.
    """
    library, tests = ([*sorted((root / folder).rglob("*.py"))] for folder in ("fedjax_collapse", "tests"))
    modules, found = [root / file], []
    while modules and not found:
        names = {_dotted(module.relative_to(root)): _defined_by(module) for module in modules}
        if not modules[0].name.startswith("_") or modules[0].name == "__init__.py":
            found = [test for test in tests if test.name.startswith("test_") and _uses(test, names)]
        modules = [path for path in library if not found and names.keys() & _imported_by(path)]
    return [str(test.relative_to(root)) for test in found]


def _dotted(path):
    return ".".join(path.parts[:-1] if path.name == "__init__.py" else path.with_suffix("").parts)


@functools.cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _defined_by(path):
    return {node.name for node in _tree(path).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _imported_by(path):
    """Returns the dotted names of the modules from which a file imports, and of what it imports."""
    nodes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ImportFrom) and node.module]
    return {name for node in nodes for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}


def _uses(test, names):
    """Returns whether a test uses one of the modules; ``names`` are what each, by its dotted name, defines."""
    imported = _imported_by(test)
    ours = {name.rpartition(".")[2] for name in imported if name.startswith("fedjax_collapse")}
    attributes = [node for node in ast.walk(_tree(test)) if isinstance(node, ast.Attribute)]
    found = {(node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name)}
    return any(
        module in imported or ours & defined or any(a in module.split(".") and b in defined for a, b in found)
        for module, defined in names.items()
    )


def is_noticed(mutation: Mutation, copy: Path) -> tuple[str | None, float]:
    """Returns the first test that fails, None if all pass, and how many seconds it took."""
    started, path = time.monotonic(), copy / mutation.file
    original = path.read_bytes()
    path.write_bytes(original[: mutation.start] + mutation.after.encode() + original[mutation.end :])
    name = path.stem.strip("_")
    files, room = importing(copy, mutation.file), f"tests/{path.relative_to(copy).parts[1]}/"
    near, far = ([file for file in files if file.startswith(room) == is_near] for is_near in (True, False))
    steps = filter(None, [near, [*GENERAL, "-k", name], far, list(GENERAL)])
    try:
        for arguments in steps:
            left = max(1.0, started + _LONGEST - time.monotonic())
            if (failed := _first_failure(arguments, copy, left)) is not None:
                return failed, time.monotonic() - started
    finally:
        path.write_bytes(original)
    return None, time.monotonic() - started


def _first_failure(arguments, copy, seconds):
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not long", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None  # a loop without end, or tests that take longer
    if run.returncode in (0, 5):  # 5: no test is selected
        return None
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0] if lines else f"exit status {run.returncode}"


def make_copy(folder: Path) -> Path:
    """Returns a copy of this clone, with what its tests have compiled."""
    return shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "build", "__pycache__"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=60, help="how many places")
    parser.add_argument("--seed", type=int, default=20261127, help="which ones")
    parser.add_argument("--processes", type=int, default=2, help="how many are tried side by side")
    parser.add_argument("--list", action="store_true", help="only show them")
    parser.add_argument("--places", type=Path, metavar="FILE", help="a list of the places to be tried instead")
    options = parser.parse_args(arguments)
    found = mutations(ROOT)
    if options.places:
        listed = [line.partition(", ")[2] for line in options.places.read_text().splitlines()]
        by_place = {mutation.place: mutation for mutation in found}
        places = [by_place[line] for line in listed if line in by_place]
        print(*(f"gone: {line}" for line in listed if line not in by_place), sep="\n")
    else:
        places = chosen(found, options.number, options.seed)
    if options.list:
        print(*places, sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        free = [make_copy(Path(folder) / str(i)) for i in range(options.processes)]

        def attempt(mutation):
            copy = free.pop()
            failed, seconds = is_noticed(mutation, copy)
            free.append(copy)
            print(f"{seconds:5.0f} s  {failed or 'NOT NOTICED'}  |  {mutation}", flush=True)
            return failed

        noticed = list(pool.map(attempt, places))
    print(f"{sum(map(bool, noticed))} of {len(places)} noticed")
    return 0 if all(noticed) else 1


if __name__ == "__main__":
    sys.exit(main())
