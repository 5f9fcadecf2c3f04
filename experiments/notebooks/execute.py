"""Executes notebooks and saves their outputs: ``python experiments/notebooks/execute.py [NAME ...]``, by default all.

Only computed results are saved: execution times, messages of libraries, the state of widgets, paths and
names of the machine are left out. ``FAST=1`` makes all sizes small and saves nothing.
"""

import argparse
import base64
import getpass
import hashlib
import io
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb")))
COLOURS = 128  # of a figure, which is saved with a palette
LARGEST = 200_000  # bytes of a notebook with its outputs: what a web page still shows at once
KEPT_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGETS = "application/vnd.jupyter.widget"


def read(name: str) -> NotebookNode:
    """Returns the notebook of that name as it is in the repository."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(notebook: NotebookNode, environment: Mapping[str, str] = {}) -> None:
    """Runs all cells in a kernel of this Python, with these variables set, and stores the outputs in the notebook.

    Raises:
        CellExecutionError: a cell failed.
    """
    client = nbclient.NotebookClient(
        notebook, timeout=1800, coalesce_streams=True, resources={"metadata": {"path": str(FOLDER)}}
    )
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    client.execute(env=os.environ | {"PYTHONPATH": path} | environment)
    clean(notebook)


def clean(notebook: NotebookNode) -> None:
    """Removes from outputs and metadata what differs between machines and executions."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [_without_machine(output) for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = KEPT_METADATA | {"executed": digest(notebook)}


def digest(notebook: NotebookNode) -> str:
    """Returns the SHA-256 of the cells' sources: saved as ``executed``, it says which sources the outputs are of."""
    return hashlib.sha256("\0".join(cell.source for cell in notebook.cells).encode()).hexdigest()


def _without_machine(output: NotebookNode) -> NotebookNode:
    """Returns the output with generic names in place of paths, user and host, and without widgets."""
    if "text" in output:
        output.text = _generic(output.text)
    if "data" in output:
        output.metadata = {}
        output.data = {
            kind: _generic(value) if kind.startswith("text/") else _smaller(value) if kind == "image/png" else value
            for kind, value in output.data.items()
            if not kind.startswith(WIDGETS)
        }
    output.pop("transient", None)
    return output


def _smaller(png: str) -> str:
    """Returns a picture, PNG in base64, with a palette: a third of the bytes."""
    picture, out = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def _generic(text: str) -> str:
    temporary = rf"{re.escape(tempfile.gettempdir())}/tmp\w+"
    text = re.sub(temporary, "/tmp/folder", text).replace(str(ROOT), "fedjax_collapse")
    return text.replace(str(Path.home()), "~").replace(f"{getpass.getuser()}@{socket.gethostname()}", "user@host")


def save(name: str, notebook: NotebookNode) -> int:
    """Writes the notebook and returns its size in bytes.

    Raises:
        ValueError: it is larger than ``LARGEST``.
    """
    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if (size := len(text.encode())) > LARGEST:
        raise ValueError(f"{name}.ipynb has {size:,} bytes, at most {LARGEST:,} are allowed: make its figures smaller")
    (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(NAMES)}; by default all")
    names = parser.parse_args().names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no notebook {', '.join(sorted(unknown))}: expected {', '.join(NAMES)}")
    for name in names:
        print(f"{name}: executing", flush=True)
        notebook = read(name)
        try:
            execute(notebook)
            print(f"{name}: {save(name, notebook):,} bytes" if not os.environ.get("FAST") else f"{name}: not saved")
        except (nbclient.exceptions.CellExecutionError, ValueError) as error:
            sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
