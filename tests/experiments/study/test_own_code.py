"""A config that names the user's own code, and all that a config may say of methods, cohorts and measurements."""

import json

import numpy as np
import pytest
import small_studies
from conftest import cases
from small_studies import error_of, rows_of, write_config

pytestmark = pytest.mark.slow

OWN = """
import sys
import jax
import numpy as np
import optax
from fedjax_collapse import Method, sources

def spread(view):
    return {"deviation": view.server.features.std(), "each": view.server.features.std(axis=0)}

def glyphs(bright=1.0):
    made = sources.glyphs(train_size=80, test_size=40, image_size=8)
    return made._replace(images=(bright * made.images).astype(np.uint8))

def four():
    return 4

def bad_measurement(view):
    return "a text"

def in_turn(labels, num_clients, seed=0):
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)

def too_few(labels, num_clients, seed=0):
    return in_turn(labels, num_clients - 1)

def leaves(view):
    sys.exit(0)

class Leaving(Method):
    def check_with(self, setup):
        sys.exit("enough")

def mirror(image, key):
    return image[:, ::-1]

def slow(learning_rate, momentum=0.0):
    return optax.sgd(learning_rate / 2, momentum)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a study of the quickstart's data with changes to its config; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")

    def start_study(changes, *arguments):
        return small_studies.start(write_config(tmp_path, *changes), f"--workdir={tmp_path / 'study'}", *arguments)

    return start_study


def test_a_config_may_name_own_functions(start, tmp_path):
    """Partition, data, augmentation, optimizers, measurement; classes are in ``test_readme.py``. Arms stay in order."""
    changes = (
        "config.partition = dict(name='own_code:in_turn')",
        "config.data = dict(source='own_code:glyphs', bright=0.5)",
        "config.training.augmentation, config.training.momentum = 'own_code:mirror', 0.0",
        "config.training.optimizer = dict(name='own_code:slow')",
        "config.methods = dict(scaffold=dict(), top_k=dict(share=0.5))",
        "config.server.optimizer = dict(name='own_code:slow', learning_rate=2.0)",
        "config.measurements, config.watch = dict(spread='own_code:spread'), 'all'",
        "config.participation, config.cohort.dropout, config.cohort.stragglers = 0.8, 0.2, 0.5",
        "config.arms = dict(zeta=dict(), alpha=dict(private='head'))",
    )
    assert start(changes) == 0
    study = tmp_path / "study"
    for arm in ("zeta", "alpha"):
        run = study / arm / "seed0"
        last = rows_of(run)[-1]
        assert last["measured/spread/deviation"] > 0 and last["R_min"] <= last["R_mean"] <= last["R_max"]
        with np.load(run / "measurements.npz") as measured, np.load(run / "spectra.npz") as spectra:
            assert measured["spread/each"].shape == (2, 6) and spectra["clients"].shape == (2, 3, 6)
    assert list(json.loads((study / "summary.json").read_text())) == ["zeta", "alpha"]
    assert "spread/deviation" in (study / "report.html").read_text()


@cases(
    ("config.network = dict(name='own_cod:Net')", "own_cod cannot be imported (ModuleNotFoundError"),
    ("config.network = dict(name='mlp', head='own_code:Leaving')", "'own_code:Leaving': expected a class derived"),
    ("config.partition = dict(name='own_code:too_few')", "own_code:too_few returned 3 of clients=4 clients"),
    ("config.partition = dict(name='own_code:spread')", "partition own_code:spread: it is spread(view), expected"),
    ("config.data.source = 'own_code:four'", "data source own_code:four 4: expected Source, got int"),
    ("config.methods = dict(x=dict(name='own_code:Leaving'))", "a round cannot be compiled (SystemExit, "),
    ("config.network = dict(name='exits:Net')", "exits cannot be imported (SystemExit: 0)"),
    ("config.measurements = dict(x='own_code:leaves')", "SystemExit: 0"),
    ("config.measurements = dict(x='own_code:bad_measurement')", "measurement x: expected numbers, got text"),
)
def test_wrong_own_code_is_one_line(change, message, start, tmp_path, capsys):
    is_late = "bad_measurement" in change or "code:leaves" in change
    is_early = change.startswith(("config.partition", "config.data"))  # before there are arms
    assert start((change,)) == (1 if is_late else 2)
    error = error_of(capsys, message)
    assert error.startswith("error: only seed 0: " if is_late else "error: " if is_early else "error: arm only: ")
    if not is_late:
        assert not (tmp_path / "study").exists()
