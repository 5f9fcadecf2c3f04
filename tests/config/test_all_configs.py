"""Every config of the project, with every word that may follow its name, is resolved and checked; no data is read."""

import re
from pathlib import Path

import pytest
from conftest import one_line

from experiments.config_files import CONFIGS, config_files, load_config
from experiments.study.resolving import resolve
from fedjax_collapse.config import build

FILES = [str(file.relative_to(CONFIGS).with_suffix("")) for file in config_files()]


def config_of(name, variant):
    return load_config(f"{CONFIGS / name}.py:{variant}")


@pytest.mark.parametrize("name", FILES)
def test_every_variant_is_valid_and_another_one_is_answered(name):
    """What the methods, the training, the schedule and the privacy of all cells are made of; nothing is compiled."""
    with one_line(rf"^{Path(name).name}\.py:anything: ") as error:
        config_of(name, "anything")
    variants = ["quickstart:smoke", "private"]  # of ``collapse_panel``, which may be followed by another config
    if name != "collapse_panel":
        listed = re.search(r"anything: expected (?:one of )?(.*) after the file name", str(error.value))[1]
        variants = [variant.replace("nothing", "") for variant in re.split(", | or ", listed)]
    for variant in variants:
        cells = [cell.values for cell in resolve(config_of(name, variant), Path()).cells]
        parts = ("rounds", "training", "methods", "server", "privacy", "cohort")
        for values in {repr([values[part] for part in parts]): values for values in cells}.values():
            build.check_privacy(values)
            build.schedule(values)
