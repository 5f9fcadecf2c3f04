"""What every key of a config means for privacy, as it is declared: harmless, counted or rejected."""

from pathlib import Path

import pytest
from conftest import check

from experiments.configs import base
from fedjax_collapse import UserError
from fedjax_collapse.config import build
from fedjax_collapse.config.keys import Key, keys
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.privacy.keys import ACCEPTED
from fedjax_collapse.run.privacy.keys import COUNTED as COUNTED_KEYS
from fedjax_collapse.run.privacy.keys import HARMLESS as HARMLESS_KEYS

PRIVATE = {
    "clients": 100, "participation": 0.2, "cohort.sampler.name": "poisson", "network.norm": "group",
    "methods": dict(dp_fedavg=dict()), "privacy": dict(delta=1e-4, population=100),
}  # fmt: skip
REJECTED = {  # a value that breaks the guarantee; then one that does not
    "cohort.sampler.name": ("by_size", "uniform"),
    "cohort.dropout": (0.1, 0.0),
    "cohort.upload_loss": (0.1, 0.0),
    "data.validation_fraction": (0.1, 0.0),
    "methods": (dict(dp_fedavg=dict(), scaffold=dict()), dict(dp_fedavg=dict(), moon=dict())),
    "server.weighting": ("size", "expected"),
    "server.batch_norm": ("recalibrate", "local"),
    "on_nan": ("stop", "continue"),
    "stop_at_accuracy": (0.5, 0.5),
    "engine.layout": ("loop", "timed"),
}
NEEDED = {  # what else makes the first value of these wrong
    "cohort.dropout": {"cohort.sampler.name": "uniform"},
    "cohort.upload_loss": {"cohort.sampler.name": "uniform"},
    "stop_at_accuracy": {"own_tests.name": "split"},
}
COUNTED = {  # other values, with which the accounting differs
    "rounds": 31,
    "clients": 99,
    "participation": 0.25,
    "privacy": dict(delta=1e-4, population=200),
}
OF_RUNS = {"seeds", "arms", "settings", "sweep"}  # each of whose values is a run with an epsilon of its own
HARMLESS = {
    "cohort.stragglers": 0.5, "cohort.straggler_share": 0.1, "data.source": "mnist5k", "data.folder": "x",
    "partition.name": "iid", "partition.alpha": 9.0, "partition.seed": 3, "own_tests.name": "split",
    "finetuning": dict(epochs=1), "network.weights": "file.npz", "network.adapters": dict(rank=2),
    "network.task": "self_supervised",
    "training.epochs": 1, "training.batch_size": 7,
    "training.learning_rate": 0.5, "training.momentum": 0.0, "training.weight_decay": 0.0,
    "training.augmentation": "moon_cifar10",
    "server.optimizer.name": "sgd", "server.optimized": "all", "private": "head",
    "keep_trained": True, "head": "orthogonal", "evaluate_every": 5, "watch": "all",
    "measurements": dict(drift="client_drift"), "measure_every": 2, "checkpoint_every": 3, "save_local": "last",
    "engine.clients_at_once": 2, "engine.devices": 1, "engine.runs": "separate", "engine.storage": "host",
}  # fmt: skip
OF_TABLES = {"means", "paper", "title"}
BESIDE = {
    "cohort.straggler_share": {"cohort.stragglers": 0.5},
    "server.optimizer.name": {"server.optimizer.learning_rate": 1.0},
    "server.optimized": {"server.optimizer": dict(name="sgd", learning_rate=1.0)},
    "save_local": {"watch": "all"},
}


def config_of(values):
    """A private config with these values of dotted keys."""
    config = plain(base.get_config())
    for path, value in (PRIVATE | values).items():
        *sections, name = path.split(".")
        at = config
        for section in sections:
            at = at[section]
        at[name] = value
    return config


def accounted(config):
    """The mechanism, once the config is accepted."""
    build.check_privacy(config)
    planned = build.schedule(config)
    arguments = build.algorithm(config), planned.rule, planned.rounds, config["clients"]
    return planned.privacy.delta, guarantee.mechanism(planned.privacy, *arguments)


def test_every_key_says_what_it_means():
    """``network.name`` is tested by ``test_running_statistics``, as it needs the network."""
    expected = {
        "rejected": {*REJECTED, "network.name"},
        "counted": {*COUNTED, *OF_RUNS},
        "harmless": {*HARMLESS, *OF_TABLES},
    }
    declared = {"rejected": ACCEPTED, "counted": COUNTED_KEYS, "harmless": HARMLESS_KEYS}
    for kind, paths in expected.items():
        assert set(declared[kind]) == paths
    assert sorted(path for paths in expected.values() for path in paths) == sorted(keys())
    page = (Path(__file__).resolve().parents[2] / "docs/privacy.md").read_text()
    rows = [f"| `{path}` | {accepted} |\n" for path, accepted in ACCEPTED.items()]
    assert all(text in page for text in (*rows, *(f"`{path}`" for path in (*COUNTED_KEYS, *HARMLESS_KEYS))))


@pytest.mark.parametrize("path", REJECTED)
def test_what_is_rejected_is_named(path):
    wrong, right = REJECTED[path]
    with pytest.raises(UserError) as error:
        accounted(config_of({path: wrong} | NEEDED.get(path, {})))
    word = {"server.batch_norm": "recalibrate", "methods": "scaffold", "cohort.sampler.name": "BySize"}
    assert word.get(path, path.removeprefix("server.")) in str(error.value) and "\n" not in str(error.value)
    accounted(config_of({path: right}))


@pytest.mark.parametrize("path", COUNTED)
def test_what_is_counted_changes_the_accounting(path):
    assert accounted(config_of({path: COUNTED[path]})) != accounted(config_of({}))


@pytest.mark.parametrize("path", HARMLESS)
def test_what_is_harmless_changes_nothing(path):
    changed, beside = config_of({path: HARMLESS[path]} | BESIDE.get(path, {})), config_of(BESIDE.get(path, {}))
    assert changed != beside and accounted(changed) == accounted(config_of({}))


def test_a_key_that_says_nothing_is_rejected(monkeypatch):
    with_it = keys() | {"cohort.peek": Key("cohort.peek", 0, int, "how closely the server looks")}
    monkeypatch.setattr("fedjax_collapse.config.keys.keys", lambda: with_it)
    config = config_of({"cohort.peek": 1})
    check(r"config.cohort.peek 1: not known to be private, expected its default, 0", build.check_privacy, config)
