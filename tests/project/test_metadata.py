"""The metadata of the package, of which setup.cfg has all but the name."""

import configparser
import runpy
import sys
import tomllib
from pathlib import Path

import setuptools

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


def test_the_wheel_has_every_file_of_its_packages(monkeypatch):
    """Modules are those of packages; other files, and modules in folders that are none, are package data."""
    given = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["setup.py", "bdist_wheel"])
    monkeypatch.setattr(setuptools, "setup", given.update)
    home = runpy.run_path("setup.py")["HOME"]
    folders = {name: Path(*name.removeprefix(f"{home}.").split(".")) for name in given["packages"]}
    packed = {path for folder in folders.values() for path in folder.glob("*.py")}
    packed |= {path for name, of in given["package_data"].items() for each in of for path in folders[name].glob(each)}
    files = [path for room in ("fedjax_collapse", "experiments") for path in Path(room).rglob("*") if path.is_file()]
    left_out = {path for path in files if not {"__pycache__", "notebooks"} & {*path.parts}} - packed
    assert left_out == set()
