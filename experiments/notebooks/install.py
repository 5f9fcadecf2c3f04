"""Installs this clone next to the JAX of a notebook's kernel, whose version stays as it is."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


class Stop(Exception):
    """Ends the notebook with one line instead of a traceback."""

    def _render_traceback_(self):
        return [str(self)]


needed = re.search("^jax[<>=].*", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[0]
versions = {str(each.name).lower(): each.version for each in metadata.distributions()}
found = getattr(sys.modules.get("jax"), "__version__", versions.get("jax"))  # the imported one, if there is one
if found and not Requirement(needed).specifier.contains(found, prereleases=True):
    raise Stop(
        f'Found JAX {found}, but {needed} is needed: run %pip install --upgrade "{needed}" (on a GPU jax[cuda12], on a '
        "TPU jax[tpu] instead of jax), restart the runtime, and run this cell again."
    )
pinned = (f"{name}=={version}" for name, version in versions.items() if re.match("jax|libtpu|numpy", name))
Path("pinned.txt").write_text("\n".join(pinned))
pip = [sys.executable, "-m", "pip", "install", "--quiet"]
subprocess.run([*pip, "--constraint=pinned.txt", f"--requirement={ROOT / 'requirements.txt'}"], check=True)
subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
sys.path.insert(0, str(ROOT))  # this kernel started before the installation
