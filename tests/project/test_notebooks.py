"""The notebooks have the outputs of their cells, and run from first to last in a kernel of this environment."""

import re
import runpy
import sys
from pathlib import Path

import jax
import jupyter_client
import nbformat
import numpy as np
import pytest
from conftest import cases

from experiments.configs import quickstart
from experiments.notebooks import execute
from experiments.notebooks.execute import NAMES, read
from experiments.study.resolving import resolve
from fedjax_collapse.config import build

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "jax"
ENVIRONMENT = {
    "FAST": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    "JAX_COMPILATION_CACHE_DIR": str(CACHE),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
}


FIGURES = {  # of the notebooks that run in a minute without an accelerator
    "quickstart": 2, "collapse": 4, "own_regularizer": 1, "adapters": 2, "rank_and_accuracy": 1, "self_supervised": 1,
    "theory": 7,
}  # fmt: skip


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def shown(notebook, kind):
    """What was displayed in a format, in order."""
    return [output.data[kind] for output in outputs(notebook) if kind in output.get("data", {})]


@pytest.mark.slow
def test_a_kernel_of_this_environment_is_found():
    command = jupyter_client.KernelManager(kernel_name="python3").format_kernel_cmd()
    assert command[0] == sys.executable  # not another environment's, of the same interpreter


@pytest.mark.parametrize("name", NAMES)
def test_saved_with_the_outputs_of_its_sources(name):
    """Which import the library and nothing of the programs."""
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    command = f"run python experiments/notebooks/execute.py {name}"
    assert notebook.metadata.get("executed") == execute.digest(notebook), command
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 5
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert shown(notebook, "image/png")
    assert not {"error", "stderr"} & {output.get("name", output.output_type) for output in outputs(notebook)}
    assert all(cell.metadata == {} for cell in notebook.cells)
    source = "\n".join(cell.source for cell in code)
    assert re.search(r"\b(?:import|from) fedjax_collapse\b", source)
    assert not re.findall(r"^\s*(?:from|import) (?:experiments|tests)\b.*", source, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_saved_without_traces_of_a_machine(name):
    path = execute.FOLDER / f"{name}.ipynb"
    assert path.stat().st_size <= execute.LARGEST
    text = path.read_text()
    assert not re.findall(r"(?<![\w.])/(?:home|root|Users|tmp/tmp|work|usr|content)\b[^\"]*", text)
    assert "widget-view" not in text


@cases("0.7.2", "0.13.0")
def test_another_jax_is_not_replaced_but_reported_in_one_line(version, monkeypatch):
    monkeypatch.setattr(jax, "__version__", version)
    with pytest.raises(Exception, match=f"^Found JAX {version}, ") as stopped:
        runpy.run_path(execute.FOLDER / "install.py")
    [line] = stopped.value._render_traceback_()
    assert "\n" not in line and 'run %pip install --upgrade "jax>=0.10,<0.13"' in line and "restart the runtime" in line


def first_code_of(name):
    return next(cell for cell in read(name).cells if cell.cell_type == "code")


@pytest.mark.parametrize("name", NAMES)
def test_badge_opens_this_notebook_of_the_repository(name):
    badge, first_code = read(name).cells[0], first_code_of(name)
    (link,) = re.findall(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)", badge.source)
    (github,) = re.findall(r'^GITHUB = "https://github\.com/([^/"]+/[^/"]+)"$', first_code.source, re.MULTILINE)
    assert link == f"https://colab.research.google.com/github/{github}/blob/main/experiments/notebooks/{name}.ipynb"
    assert first_code.source == first_code_of(NAMES[0]).source


def test_quickstart_is_the_study_of_its_config(monkeypatch):
    """Its cells, up to those that train, make the data, network and arms of the launcher."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.delenv("FAST", raising=False)
    made = {}
    for cell in read("quickstart").cells:
        if cell.cell_type == "code" and "arms" not in made:
            exec(cell.source.replace("%matplotlib inline", ""), made)
    cells = resolve(quickstart.get_config(), Path()).cells
    assert [*made["arms"]] == [cell.arm for cell in cells]
    for cell in cells:
        assert made["arms"][cell.arm] == build.algorithm(cell.values)
    federation = build.federations(cells[0].values, seeds=(0,))[0]
    assert made["model"] == build.model(cells[0].values, federation)
    assert made["ROUNDS"] == cells[0].values["rounds"]
    np.testing.assert_array_equal(made["federation"].class_counts(), federation.class_counts())


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_small_notebook_draws_as_many_figures_as_the_saved_one(name):
    """With something drawn in each; and the first one has the effect that its study is about."""
    notebook = read(name)
    execute.execute(notebook, ENVIRONMENT)
    figures = shown(notebook, "image/png")
    assert len(figures) == len(shown(read(name), "image/png")) == FIGURES[name] and min(map(len, figures)) > 4000
    if name == "quickstart":
        lines = [text for text in shown(notebook, "text/plain") if "samples/s" in text]
        found = [re.search(r"(.*) seed 0: round 3/3, .*effective rank ([\d.]+),", line).groups() for line in lines]
        ranks = {arm: float(rank) for arm, rank in found}
        assert set(ranks) == set(quickstart.get_config().arms)
        assert 1 < ranks["fedavg"] == min(ranks.values()) < max(ranks.values()) < 64


def test_a_notebook_that_is_too_large_is_not_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "FOLDER", tmp_path)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x" * execute.LARGEST)])
    with pytest.raises(ValueError, match=r"^large\.ipynb has 20\d,\d+ bytes, at most 200,000 are allowed"):
        execute.save("large", notebook)
    assert not list(tmp_path.iterdir())
