"""A config that names the user's own code, and all that a config may say of methods, cohorts and measurements."""

import json

import numpy as np
import pytest
import small_studies
from small_studies import write_config

pytestmark = pytest.mark.slow

OWN = """
import sys
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from fedjax_collapse import Method, Outputs, Regularizer, Term, masked_mean, sources

class Net(nn.Module):
    num_classes: int
    width: int = 8

    @nn.compact
    def __call__(self, images, mask, train):
        features = nn.relu(nn.Dense(self.width)(images.reshape(len(images), -1)))
        return Outputs(features, nn.Dense(self.num_classes, name="head")(features))

@struct.dataclass
class Norm(Regularizer):
    strength: float = 0.01

    def penalty(self, view):
        return {"norm": Term(self.strength, masked_mean(jnp.sum(view.outputs.features**2, axis=1), view.batch.mask))}

@struct.dataclass
class Half(Method):
    def upload(self, update, view):
        return jax.tree.map(lambda leaf: leaf / 2, update), view.memory

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

@struct.dataclass
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


def rows(folder, arm="only"):
    return [json.loads(line) for line in (folder / "study" / arm / "seed0" / "metrics.jsonl").read_text().splitlines()]


def test_everything_may_be_the_users_own(start, tmp_path):
    """Network, partition, augmentation, regularizer, method, measurement, optimizers; arms in their declared order."""
    changes = (
        "config.network = dict(name='own_code:Net', width=6)",
        "config.partition = dict(name='own_code:in_turn')",
        "config.data = dict(source='own_code:glyphs', bright=0.5)",
        "config.training.augmentation, config.training.momentum = 'own_code:mirror', 0.0",
        "config.training.optimizer = dict(name='own_code:slow')",
        "norm, half = dict(name='own_code:Norm', strength=0.1), dict(name='own_code:Half')",
        "config.methods = dict(scaffold=dict(), norm=norm, top_k=dict(share=0.5), half=half)",
        "config.server.optimizer = dict(name='own_code:slow', learning_rate=2.0)",
        "config.measurements = dict(spread='own_code:spread')",
        "config.watch = 'all'",
        "config.participation, config.cohort.dropout, config.cohort.stragglers = 0.8, 0.2, 0.5",
        "config.arms = dict(zeta=dict(), alpha=dict(private='head'))",
    )
    assert start(changes) == 0
    study = tmp_path / "study"
    for arm in ("zeta", "alpha"):
        last = rows(tmp_path, arm)[-1]
        assert last["measured/spread/deviation"] > 0 and last["train/norm/norm"] > 0
        assert last["R_min"] <= last["R_mean"] <= last["R_max"]
        with np.load(study / arm / "seed0" / "measurements.npz") as arrays:
            assert arrays["spread/each"].shape == (2, 6)
        with np.load(study / arm / "seed0" / "spectra.npz") as arrays:
            assert arrays["clients"].shape == (2, 3, 6)
    described = json.loads((study / "zeta" / "seed0" / "run.json").read_text())["algorithm"]
    assert list(described["methods"]) == ["scaffold", "norm", "top_k", "half"]
    assert list(json.loads((study / "summary.json").read_text())) == ["zeta", "alpha"]
    report = (study / "report.html").read_text()
    assert "measured/spread/deviation" in report or "spread/deviation" in report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("config.network = dict(name='own_cod:Net')", "own_cod cannot be imported (ModuleNotFoundError"),
        ("config.network = dict(name='mlp', head='own_code:Norm')", "'own_code:Norm': expected a class derived from"),
        ("config.partition = dict(name='own_code:too_few')", "own_code:too_few returned 3 of clients=4 clients"),
        ("config.partition = dict(name='own_code:spread')", "partition own_code:spread: it is spread(view), expected"),
        ("config.data.source = 'own_code:four'", "data source own_code:four 4: expected Source, got int"),
        ("config.methods = dict(x=dict(name='own_code:Leaving'))", "a round cannot be compiled (SystemExit, "),
        ("config.network = dict(name='exits:Net')", "exits cannot be imported (SystemExit: 0)"),
        ("config.measurements = dict(x='own_code:leaves')", "SystemExit: 0"),
        ("config.measurements = dict(x='own_code:bad_measurement')", "measurement x: expected numbers, got text"),
    ],
)
def test_what_is_wrong_is_one_line(start, tmp_path, capsys, change, message):
    is_late = "bad_measurement" in change or "code:leaves" in change
    is_early = change.startswith(("config.partition", "config.data"))  # before there are arms
    assert start((change,)) == (1 if is_late else 2)
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: only seed 0: " if is_late else "error: " if is_early else "error: arm only: ")
    assert message in error and "\n" not in error
    if not is_late:
        assert not (tmp_path / "study").exists()
