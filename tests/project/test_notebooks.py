"""The notebooks have the outputs of their cells, and run from first to last in a kernel of this environment."""

import ast
import functools
import re
import sys
import tempfile
from pathlib import Path

import jax
import jupyter_client
import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.configs import quickstart
from experiments.notebooks import execute, principal_directions, sphere
from experiments.notebooks.execute import NAMES, read

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "jax"
ENVIRONMENT = {
    "FAST": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    "JAX_COMPILATION_CACHE_DIR": str(CACHE),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
}


@functools.cache
def executed(name):
    """The small notebook with new outputs; an error in a cell is raised."""
    notebook = read(name)
    execute.execute(notebook, ENVIRONMENT)
    return notebook


ARMS = set(quickstart.get_config().arms)


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


@pytest.mark.slow
def test_a_kernel_of_this_environment_is_found():
    command = jupyter_client.KernelManager(kernel_name="python3").format_kernel_cmd()
    assert command[0] == sys.executable  # not another environment's, of the same interpreter


@pytest.mark.parametrize("name", NAMES)
def test_saved_with_the_outputs_of_its_sources(name):
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


@pytest.mark.parametrize("name", NAMES)
def test_saved_without_traces_of_a_machine(name):
    path = execute.FOLDER / f"{name}.ipynb"
    assert path.stat().st_size <= execute.LARGEST
    text = path.read_text()
    assert not re.findall(r"(?<![\w.])/(?:home|root|Users|tmp/tmp|work|usr|content)\b[^\"]*", text)
    assert "widget-view" not in text


def test_outputs_are_cleaned_of_the_machine():
    """Of paths, stderr, times and widgets; what was computed stays."""
    temporary = f"{tempfile.gettempdir()}/tmpabc123/study"
    widget = {f"{execute.WIDGETS}-view+json": {"model_id": "1"}}
    data = {"text/plain": f"{execute.ROOT}/runs", "text/markdown": "| a |"} | widget
    cell = nbformat.v4.new_code_cell("1", metadata={"execution": {"iopub.status.idle": "now"}})
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="a warning"),
        nbformat.v4.new_output("stream", name="stdout", text=f"12 % in {temporary} of {Path.home()}/x"),
        nbformat.v4.new_output("display_data", data=data, metadata={"needs": "this"}),
    ]
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}})
    execute.clean(notebook)
    assert cell.metadata == {} and set(notebook.metadata) == {"kernelspec", "language_info", "executed"}
    text, display = cell.outputs
    assert text.text == "12 % in /tmp/folder/study of ~/x"
    assert display.data == {"text/plain": "fedjax_collapse/runs", "text/markdown": "| a |"} and display.metadata == {}


def test_a_notebook_that_is_too_large_is_not_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "FOLDER", tmp_path)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x" * execute.LARGEST)])
    with pytest.raises(ValueError, match=r"^large\.ipynb has 20\d,\d+ bytes, at most 200,000 are allowed"):
        execute.save("large", notebook)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("version", ["0.7.2", "0.13.0"])
def test_first_cell_reports_another_jax_in_one_line(version, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setattr(jax, "__version__", version)
    first = next(cell for cell in read("quickstart").cells if cell.cell_type == "code")
    with pytest.raises(Exception, match=f"^Found JAX {version}, ") as stopped:
        exec(compile(first.source, "first cell", "exec"), {})
    [line] = stopped.value._render_traceback_()
    assert "\n" not in line and 'run %pip install --upgrade "jax>=0.10,<0.13"' in line and "restart the runtime" in line


@pytest.mark.parametrize("name", NAMES)
def test_badge_opens_this_notebook_of_the_repository(name):
    badge, first_code = read(name).cells[0], next(cell for cell in read(name).cells if cell.cell_type == "code")
    (link,) = re.findall(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)", badge.source)
    (github,) = re.findall(r'^GITHUB = "https://github\.com/([^/"]+/[^/"]+)"$', first_code.source, re.MULTILINE)
    assert link == f"https://colab.research.google.com/github/{github}/blob/main/experiments/notebooks/{name}.ipynb"
    assert first_code.source == next(cell for cell in read(NAMES[0]).cells if cell.cell_type == "code").source


@pytest.mark.slow
def test_quickstart():
    """All arms of the config in every round, their curves, and the effect that the study is about."""
    notebook = executed("quickstart")
    lines = [text for text in shown(notebook, "text/plain") if "samples/s" in text]
    assert {line.split(":")[0] for line in lines} == ARMS
    assert all(re.search(r"round 3/3, accuracy [\d.]+ %, effective rank [\d.]+, [\d,]+ samples/s$", x) for x in lines)
    assert_figures(notebook, 2)
    table = table_of(notebook)
    assert set(table) == ARMS
    ranks = [float(row["Effective rank"]) for row in table.values()]
    assert 1 < float(table["fedavg"]["Effective rank"]) == min(ranks) < max(ranks) < 128
    assert all(f"effective rank {rank:.1f}" in line for rank, line in zip(ranks, lines, strict=True))


@pytest.mark.slow
def test_collapse():
    """The study of the launcher, its figures, the clients' spectra, and the sphere."""
    notebook = executed("collapse")
    assert f"[{len(ARMS)}/{len(ARMS)}] " in printed(notebook)
    assert_figures(notebook, 4)
    table = table_of(notebook)
    assert set(table) == ARMS
    (by_arm,) = literals(notebook)
    assert all(1 < ranks["min"] < ranks["mean"] < ranks["max"] <= 128 for ranks in by_arm.values())
    assert by_arm["fedavg"]["mean"] < by_arm["feddecorr"]["mean"]


@pytest.mark.slow
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
    gaps = {
        float(row[f"overconfidence/{of}"].replace("−", "-")) for row in table.values() for of in ("server", "local")
    }
    assert len(gaps) == 6 and all(-1 < gap < 1 for gap in gaps)


@pytest.mark.slow
def test_adapters():
    """Adapters of a network that was trained before, and the energy that FlexLoRA and raFLoRA keep."""
    notebook = executed("adapters")
    (sizes,) = literals(notebook)
    assert sizes == {"base": 54_480, "adapters": 2 * 2 * 64 * 8, "head": 65 * 26}  # of one block
    assert_figures(notebook, 1)
    table = table_of(notebook)
    assert list(table) == ["fedit", "flexlora", "raflora"]
    assert all(0 < float(row["adapters/beyond_2"]) < 0.5 for row in table.values())


@pytest.mark.slow
@pytest.mark.long
def test_throughput_of_100_clients():
    notebook = executed("throughput_100_clients")
    text = printed(notebook)
    assert re.search(r"device: cpu\nnumber of devices: 2\nprocessor cores: \d+\ndefault matmul precision: ", text)
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
