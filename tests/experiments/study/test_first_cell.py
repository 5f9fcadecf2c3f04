"""The way from files of CIFAR10 to a published number: ``feddecorr/first_cell:full``, smaller only where it is slow."""

import re

import numpy as np
import pytest
from small_studies import start
from standard_data import save_torchvision

pytestmark = pytest.mark.slow

SMALLER = """
from experiments.configs.feddecorr import first_cell

def get_config(arg="full"):
    config = first_cell.get_config(arg)
    assert config.settings["cifar10-0.05"].rounds == 100 and config.network.name == "mobilenet_v2"
    config.settings["cifar10-0.05"].rounds, config.training.epochs = 2, 1
    config.network = dict(name="small_cnn", channels=(4,))
    return config
"""


def images(count, seed):
    """Images of a colour for each class, with noise."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % 10
    colours = np.random.default_rng(0).integers(0, 256, (10, 1, 1, 3))
    return np.clip(colours[labels] + rng.normal(0, 20, (count, 32, 32, 3)), 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first_cell")
    save_torchvision("cifar10", folder / "data", [images(1000, 1), images(200, 2)])
    (folder / "smaller.py").write_text(SMALLER)
    return folder


def test_the_papers_numbers_stand_beside_ours(study, capsys):
    config, data = f"--config={study / 'smaller.py'}:full", f"--config.data.folder={study / 'data'}"
    assert start(config, data, f"--workdir={study / 'study'}") == 0
    printed = capsys.readouterr().out
    page = (study / "study" / "report.html").read_text(encoding="utf-8")
    for arm, theirs in (("fedavg", "64.85 ± 2.01"), ("fedavg_decorr", "73.06 ± 0.81")):
        (row,) = [line for line in printed.splitlines() if re.match(rf"{arm} ", line) and theirs in line]
        mean, spread = map(float, re.search(r"([\d.]+) ± ([\d.]+) \(3\)", row).groups())
        center, margin = map(float, theirs.split(" ± "))
        assert ("≈" in row) == (abs(mean - center) <= spread + margin) and ("≠" in row) == ("≈" not in row)
        assert theirs in page
    assert "overlap, in" in printed and "Shi et al., TPAMI 2023, Table 1" in printed
