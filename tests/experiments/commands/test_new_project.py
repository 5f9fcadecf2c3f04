"""The small project that ``fedjax-collapse new`` writes, and that its parts run."""

import os
import shutil
import subprocess
import sys

import nbclient
import nbformat
import pytest
from small_studies import error_of, start, tree
from unrendered import ROOT

from experiments.commands import new_project
from experiments.commands.new_project import TEMPLATE, main

FILES = {"README.md", "config.toml", "notebook.ipynb", "pytest.ini"}
FILES |= {"my_method.py", "my_network.py", "test_my_method.py"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "deep" / "myproject"
    assert main([str(folder)]) == 0
    return folder


def test_it_is_a_copy_of_short_files(project):
    assert {path.name for path in project.iterdir()} == FILES
    assert all((project / name).read_bytes() == (TEMPLATE / name).read_bytes() for name in FILES)
    assert len((project / "README.md").read_text().splitlines()) <= 10
    notebook = nbformat.read(project / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_an_empty_folder_is_filled_and_another_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(new_project, "TEMPLATE", shutil.copytree(TEMPLATE, tmp_path / "template"))
    (tmp_path / "template" / "__pycache__").mkdir(exist_ok=True)  # of an installation by pip
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 0
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".mine").touch()
    before = tree(tmp_path)
    for name, reason in (("full", "not empty"), ("file", "cannot be written"), ("file/below", "cannot be written")):
        assert main([str(tmp_path / name)]) == 2 and error_of(capsys, name, reason)
    assert tree(tmp_path) == before and {path.name for path in (tmp_path / "empty").iterdir()} == FILES


@pytest.mark.slow
def test_its_test_its_config_and_its_notebook_run(project, monkeypatch, capsys):
    (project.parent / "setup.cfg").write_text("[tool:pytest]\naddopts = --of-another-project\n")  # as in our clone
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout + tested.stderr

    monkeypatch.setattr(sys, "path", [*sys.path])
    options = "--compare=fedprox,my_method:FeatureNorm", "--config.rounds=1", "--config.seeds=(0,)"
    for run, given in (("first", options[1:]), ("compared", options)):
        assert start(f"--config={project / 'config.toml'}", *given, f"--workdir={project / run}") == 0
    printed = capsys.readouterr().out
    assert "\nfeature_norm " in printed and "\nfedprox " in printed and "\nFeatureNorm " in printed

    notebook = nbformat.read(project / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(project)}}).execute(env=environment)
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("feature_norm" in data.get("text/html", "") for data in shown) and "image/png" in shown[-1]
