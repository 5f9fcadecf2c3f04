"""The notebooks run from first cell to last, in a kernel of this environment, and show what they promise."""

import ast
import functools
import os
import re
import sys
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.notebooks import principal_directions, sphere

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "experiments" / "notebooks"
NAMES = ("collapse", "own_regularizer", "quickstart", "throughput_100_clients")
CACHE = Path(__file__).parents[2] / ".pytest_cache" / "jax"
ENVIRONMENT = {
    "FAST": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    "JAX_COMPILATION_CACHE_DIR": str(CACHE),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
}


def read(name):
    """The notebook as it is in the repository."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def client_of(notebook):
    """What executes the notebook, in its own folder; the kernel is this environment's."""
    return nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}})


@functools.cache
def executed(name):
    """The notebook with its outputs; an error in a cell is raised."""
    notebook = read(name)
    client_of(notebook).execute(env=os.environ | ENVIRONMENT)
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def shown(notebook, kind):
    """What was displayed in a format, in order."""
    return [output.data[kind] for output in outputs(notebook) if kind in output.get("data", {})]


def printed(notebook):
    return "".join(output.text for output in outputs(notebook) if output.get("name") == "stdout")


def table_of(notebook):
    """By arm, the cells of its row by heading."""
    (text,) = shown(notebook, "text/markdown")
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    return {row[0]: dict(zip(heading, row, strict=True)) for row in rows}


def literals(notebook):
    """The dicts that cells end with, in order."""
    return [ast.literal_eval(text) for text in shown(notebook, "text/plain") if text.startswith("{")]


def assert_figures(notebook, count):
    """So many figures, each with something drawn in it."""
    assert len(shown(notebook, "image/png")) == count
    assert min(map(len, shown(notebook, "image/png"))) > 4000


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


def test_a_kernel_of_this_environment_is_found():
    command = jupyter_client.KernelManager(kernel_name="python3").format_kernel_cmd()
    assert command[0] == sys.executable  # not another environment's, of the same interpreter


@pytest.mark.parametrize("name", NAMES)
def test_saved_without_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 5
    for cell in code:
        assert not cell.outputs and cell.execution_count is None
    for cell in notebook.cells:
        assert set(cell.metadata) == set()


@pytest.mark.parametrize("name", NAMES)
def test_badge_opens_this_notebook_of_the_repository(name):
    badge, first_code = read(name).cells[0], next(cell for cell in read(name).cells if cell.cell_type == "code")
    (link,) = re.findall(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)", badge.source)
    (github,) = re.findall(r'^GITHUB = "https://github\.com/([^/"]+/[^/"]+)"$', first_code.source, re.MULTILINE)
    assert link == f"https://colab.research.google.com/github/{github}/blob/main/experiments/notebooks/{name}.ipynb"
    assert first_code.source == next(cell for cell in read(NAMES[0]).cells if cell.cell_type == "code").source


def test_quickstart():
    """Two arms in every round, their curves, and the effect that the study is about."""
    notebook = executed("quickstart")
    lines = [text for text in shown(notebook, "text/plain") if "round" in text]
    assert [line.split(":")[0] for line in lines] == ["fedavg", "feddecorr"]
    assert all(re.search(r"round 3/3, accuracy [\d.]+ %, effective rank [\d.]+, [\d,]+ samples/s$", x) for x in lines)
    assert_figures(notebook, 2)
    table = table_of(notebook)
    assert list(table) == ["fedavg", "feddecorr"]
    ranks = [float(row["Effective rank"]) for row in table.values()]
    assert 1 < ranks[0] < ranks[1] < 16
    assert all(f"effective rank {rank:.1f}" in line for rank, line in zip(ranks, lines, strict=True))


def test_collapse():
    """The study of the launcher, its figures, the clients' spectra, and the sphere."""
    notebook = executed("collapse")
    assert "[2/2] feddecorr seed 0  round 3/3" in printed(notebook)
    assert_figures(notebook, 4)
    table = table_of(notebook)
    assert list(table) == ["fedavg", "feddecorr"]
    (by_arm,) = literals(notebook)
    of_clients = [by_arm[arm] for arm in table]
    assert all(1 < ranks["min"] < ranks["mean"] < ranks["max"] <= 16 for ranks in of_clients)
    assert of_clients[0]["max"] < of_clients[1]["min"]


def test_own_regularizer():
    """Its term and its measurement are there, and another strength compiles no round."""
    notebook = executed("own_regularizer")
    compiling, terms = literals(notebook)
    assert 10 * compiling["both_stronger"] < compiling["both"]  # what is left are conversions of single numbers
    assert "train/confidence/negative_entropy" not in terms["feddecorr"]
    entropies = [-terms[arm]["train/confidence/negative_entropy"] for arm in ("both", "both_stronger")]
    assert 0 < entropies[0] < entropies[1] <= np.log(10)
    assert all(of_arm["train/feddecorr/correlation"] > 0 for of_arm in terms.values())
    assert_figures(notebook, 1)
    table = table_of(notebook)
    assert list(table) == ["feddecorr", "both", "both_stronger"]
    gaps = {float(row[f"overconfidence/{of}"]) for row in table.values() for of in ("server", "local")}
    assert len(gaps) == 6 and all(-1 < gap < 1 for gap in gaps)


def test_throughput_of_100_clients():
    notebook = executed("throughput_100_clients")
    text = printed(notebook)
    assert "device: cpu\nnumber of devices: 2\ndefault matmul precision: " in text
    assert "with 100 clients" in text
    speeds = {
        system: float(speed.replace(",", ""))
        for system, speed in re.findall(r"^(fedjax_collapse|PyTorch) on .*: ([\d,]+) samples/s$", text, re.MULTILINE)
    }
    assert set(speeds) == {"fedjax_collapse", "PyTorch"}
    assert all(100 < speed < 1e7 for speed in speeds.values())
    (ratio,) = re.findall(r"fedjax_collapse / PyTorch: ([\d.]+)", text)
    np.testing.assert_allclose(float(ratio), speeds["fedjax_collapse"] / speeds["PyTorch"], rtol=0.02, atol=0.01)
    assert_figures(notebook, 1)


def test_principal_directions_of_a_plane():
    """Two orthogonal directions in five dimensions: all variance is in them, and the third coordinate is nothing."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((5, 2)))
    points = rng.standard_normal((200, 2)) * [3.0, 1.0]
    points -= points.mean(axis=0)
    directions, share = principal_directions(points @ basis.T + 7.0)
    np.testing.assert_allclose(share, 1)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    np.testing.assert_allclose(directions[:, 2], 0, atol=1e-9)
    found = directions[:, :2] @ directions[:, :2].T  # free of the axes' signs and of a rotation in the plane
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    np.testing.assert_allclose(found, unit @ unit.T, atol=1e-9)
    assert principal_directions(points @ basis.T, count=1)[1] < 0.95
    assert principal_directions(np.ones((4, 5)))[1] == 0


def test_sphere_has_a_panel_for_each_model():
    rng = np.random.default_rng(0)
    features = {name: rng.standard_normal((30, 6)) for name in ("first", "second")}
    figure = sphere(features, np.arange(30) % 3)
    assert isinstance(figure, Figure)
    assert [axes.get_title().split(":")[0] for axes in figure.axes] == ["first", "second"]
