"""The metadata of the package, of which setup.cfg has all but the name."""

import configparser
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {  # of pyproject.toml, where setup.cfg has another one
    "long_description": "readme",
    "long_description_content_type": "readme",
    "python_requires": "requires-python",
    "install_requires": "dependencies",
    "options.extras_require": "optional-dependencies",
    "options.entry_points": "scripts",
}


def test_nothing_of_setup_cfg_is_left_out():
    """uv needs the table ``project``, beside which setuptools ignores what it does not list."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    keys = [*metadata["metadata"], *metadata["options"]]
    keys += [section for section in metadata if section.startswith("options.")]
    keys.remove("license_files")  # setuptools takes it from there in any case
    assert {NAMES.get(key, key) for key in keys} == {"name", *project["dynamic"]}
    assert project["name"] == metadata["metadata"]["name"]
