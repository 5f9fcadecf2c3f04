"""A study that is trained in seconds: its config, and the launcher without a process of its own."""

import json

import numpy as np
import pytest
from unrendered import svg

from experiments import launch

CONFIG = """
from experiments.configs import quickstart

def get_config(arg=""):
    config = quickstart.get_config("smoke")
    config.network, config.training.epochs, config.clients = dict(name="mlp", hidden=(6,)), 1, 4
    config.partition.alpha, config.arms = 1.0, dict(only=dict())
{changes}    return config
"""


BASE = """
from experiments.configs import base

def get_config(arg=""):
    config = base.get_config()
{changes}    return config
"""


def write_config(folder, *changes, of=CONFIG):
    """Writes a config file into the folder, changed by these lines; returns the argument that names it."""
    file = folder / "config.py"
    file.write_text(of.format(changes="".join(f"    {line}\n" for line in changes)), encoding="utf-8")
    return f"--config={file}"


def start(*arguments, should_stop=None, renders=False):
    """The exit status of the launcher, called here, where JAX has been configured already.

    ``renders``: whether the figures of the page are rendered, not only made, which takes longer than to train.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "configure_jax", lambda cache: None)
        if not renders:
            patch.setattr("fedjax_collapse.results.plot.drawing.svg", svg)
        return launch.main(list(arguments), should_stop)


def write_data(seed=0):
    """Writes 120 small images of three classes, as ``data.npz`` in the current folder."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 255, (120, 4, 4, 1)).astype(np.uint8), np.arange(120) % 3
    np.savez("data.npz", images=images[:90], labels=labels[:90], test_images=images[90:], test_labels=labels[90:])


def error_of(capsys, *words):
    """What was printed as an error: one line, which has the words."""
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and all(word in error for word in words), error
    return error


def rows_of(run, name="metrics"):
    """The rows of a run's file."""
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def tree(folder):
    """What is below the folder: the content of every file, None for a folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}
