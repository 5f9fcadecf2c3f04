"""The notebooks of ``experiments/notebooks``, with their saved outputs, as pages of the site below ``notebooks/``.

A hook of mkdocs.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).parents[1] / "experiments" / "notebooks"
BADGE = re.compile(r"\[!\[([^]]+)\]\([^)]+\)\]")  # an image from a network, with a link


def on_files(files, config):
    """Returns the files of the site with a page of each notebook, and the images of its outputs."""
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        names = {"unique_key": notebook.stem, "output_files_dir": "outputs"}
        text, resources = MarkdownExporter().from_filename(str(notebook), resources=names)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=BADGE.sub(r"[\1]", text)))
        for name, image in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=image))
    return files
