"""The notebooks have the outputs of their cells, and run from first to last in a kernel of this environment."""

import ast
import functools
import re
import runpy
import sys
from pathlib import Path

import jax
import jupyter_client
import nbformat
import numpy as np
import pytest

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


def tables_of(notebook):
    """The frames that were displayed, in order: by arm, the cells of its row by heading."""

    def table(html):
        rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in html.split("</tr>")[:-1]]
        return {row[1]: dict(zip(rows[0][2:], row[2:], strict=True)) for row in rows[1:]}

    return [table(html) for html in shown(notebook, "text/html")]


def numbers(notebook):
    """The frames that were displayed, as text: the words of each row with a fraction."""
    texts = [text for text in shown(notebook, "text/plain") if not text.startswith("<Figure")]
    return [[line.split() for line in text.splitlines() if re.search(r"\d\.\d", line)] for text in texts]


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


@pytest.mark.parametrize("name", NAMES)
def test_imports_nothing_of_the_programs(name):
    code = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    assert "import fedjax_collapse" in code or "from fedjax_collapse import" in code
    assert not re.findall(r"^\s*(?:from|import) (?:experiments|tests)\b.*", code, re.MULTILINE)


@pytest.mark.parametrize("version", ["0.7.2", "0.13.0"])
def test_another_jax_is_not_replaced_but_reported_in_one_line(version, monkeypatch):
    monkeypatch.setattr(jax, "__version__", version)
    with pytest.raises(Exception, match=f"^Found JAX {version}, ") as stopped:
        runpy.run_path(execute.FOLDER / "install.py")
    [line] = stopped.value._render_traceback_()
    assert "\n" not in line and 'run %pip install --upgrade "jax>=0.10,<0.13"' in line and "restart the runtime" in line


@pytest.mark.parametrize("name", NAMES)
def test_badge_opens_this_notebook_of_the_repository(name):
    badge, first_code = read(name).cells[0], next(cell for cell in read(name).cells if cell.cell_type == "code")
    (link,) = re.findall(r"\]\((https://colab\.research\.google\.com/github/[^)]*)\)", badge.source)
    (github,) = re.findall(r'^GITHUB = "https://github\.com/([^/"]+/[^/"]+)"$', first_code.source, re.MULTILINE)
    assert link == f"https://colab.research.google.com/github/{github}/blob/main/experiments/notebooks/{name}.ipynb"
    assert first_code.source == next(cell for cell in read(NAMES[0]).cells if cell.cell_type == "code").source


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
def test_quickstart():
    """All arms in every round, their curves, and the effect that the study is about."""
    notebook = executed("quickstart")
    lines = [text for text in shown(notebook, "text/plain") if "samples/s" in text]
    assert {line.split(" seed 0: ")[0] for line in lines} == ARMS
    assert all(re.search(r"round 3/3, accuracy [\d.]+ %, effective rank [\d.]+, [\d,]+ samples/s$", x) for x in lines)
    assert_figures(notebook, 2)
    table, _ = tables_of(notebook)
    assert set(table) == ARMS
    ranks = [float(row["Effective rank"]) for row in table.values()]
    assert 1 < float(table["fedavg"]["Effective rank"]) == min(ranks) < max(ranks) < 64
    assert all(f"effective rank {rank:.1f}" in line for rank, line in zip(ranks, lines, strict=True))


@pytest.mark.slow
def test_collapse():
    """A study in a folder, its figures, the clients' spectra, and the sphere."""
    notebook = executed("collapse")
    assert_figures(notebook, 4)
    table, by_arm = tables_of(notebook)
    assert [*table] == [*by_arm] == ["fedavg", "feddecorr"]
    ranks = [[float(row[f"local_effective_rank_{kind}"]) for kind in ("min", "mean", "max")] for row in by_arm.values()]
    assert all(1 < low < mean < high <= 64 for low, mean, high in ranks)
    assert ranks[0][1] < ranks[1][1]


@pytest.mark.slow
def test_own_regularizer():
    """Its term and its measurement are there, and another strength compiles no round."""
    notebook = executed("own_regularizer")
    compiling, terms, table = tables_of(notebook)
    seconds = {arm: float(row["compile"]) for arm, row in compiling.items()}
    assert 10 * seconds["both_stronger"] < seconds["both"]  # what is left are conversions of single numbers
    assert terms["feddecorr"]["train/confidence/negative_entropy"] == "NaN"
    entropies = [-float(terms[arm]["train/confidence/negative_entropy"]) for arm in ("both", "both_stronger")]
    assert 0 < entropies[0] < entropies[1] <= np.log(10)
    assert all(float(of_arm["train/feddecorr/correlation"]) > 0 for of_arm in terms.values())
    assert_figures(notebook, 1)
    assert list(table) == ["feddecorr", "both", "both_stronger"]
    gaps = {
        float(row[f"overconfidence/{of}"].replace("−", "-")) for row in table.values() for of in ("server", "local")
    }
    assert len(gaps) == 6 and all(-1 < gap < 1 for gap in gaps)


@pytest.mark.slow
def test_adapters():
    """Adapters of a network that was trained before, and the energy that FlexLoRA and raFLoRA keep."""
    notebook = executed("adapters")
    (sizes,) = (ast.literal_eval(text) for text in shown(notebook, "text/plain") if text.startswith("{"))
    assert sizes == {"base": 54_480, "adapters": 2 * 2 * 64 * 8, "head": 65 * 26}  # of one block
    assert_figures(notebook, 2)
    table, *_ = tables_of(notebook)
    assert list(table) == ["fedit", "flexlora", "raflora"]
    assert all(0 < float(row["adapters/beyond_2"]) < 0.5 for row in table.values())


@pytest.mark.slow
def test_rank_and_accuracy():
    """Gains of six methods over federated averaging, and a correlation over as many points."""
    notebook = executed("rank_and_accuracy")
    assert_figures(notebook, 1)
    gains, correlations, _ = numbers(notebook)
    assert [row[0] for row in gains] == ["feddecorr", "decov", "feduv", "fedrcl", "fedlc", "ccvr"]
    assert correlations[0][0] == "6"


@pytest.mark.slow
def test_theory():
    """Where the formulas are exact, and what few classes and missing ones do."""
    notebook = executed("theory")
    assert_figures(notebook, 7)
    errors, ranks, alignment, dirichlet, discs, _, sphere = numbers(notebook)
    assert float(errors[0][2]) < 1e-10 and float(errors[1][1]) < 1e-4 and float(errors[1][2]) > 0.1
    for rising in ([row[1] for row in ranks], *([row[i] for row in dirichlet[::3]] for i in (2, 3))):
        assert [*map(float, rising)] == sorted(map(float, rising)) and float(rising[-1]) > 2 * float(rising[0])
    assert all(float(row[1]) < 0.3 for row in alignment) and float(printed(notebook)) < 1e-13
    assert float(alignment[0][2]) > 0.8 and float(alignment[-1][2]) < 0.6
    assert [row[-2] for row in discs[-3:]] == ["0.0", "45.0", "45.0"]
    even = {row[0]: float(row[-2]) for row in sphere}
    assert even["centralised"] < even["FedAvg"] - 0.4  # on a narrow area


def test_a_notebook_that_is_too_large_is_not_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "FOLDER", tmp_path)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("x" * execute.LARGEST)])
    with pytest.raises(ValueError, match=r"^large\.ipynb has 20\d,\d+ bytes, at most 200,000 are allowed"):
        execute.save("large", notebook)
    assert not list(tmp_path.iterdir())
