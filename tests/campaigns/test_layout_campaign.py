"""Studies that continue in every layout of processes and devices: a short walk, and what is made of differences."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from campaigns import layout_campaign
from campaigns.layout_campaign import LAYOUTS, Layout, walk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_one_and_two_processes_agree_and_go_on_from_each_other(tmp_path):
    """The whole campaign is the script's."""
    command = [sys.executable, "tests/campaigns/layout_campaign.py", "--cases=alone", "--layouts=1x1,2x2"]
    done = subprocess.run([*command, f"--out={tmp_path / 'out'}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[:4] == ["layout", "starts", "seconds", "alone"]
    found = [re.match(r"(\w+) +(\d) +\d+  (\S+) ", line).groups() for line in lines]
    assert [(name, starts) for name, starts, _ in found] == [("1x1", "1"), ("2x2", "1"), ("walk", "3")]
    assert found[0][2] == "0.0e+00" and all(0 < float(largest) < 1e-4 for _, _, largest in found[1:])


@pytest.mark.parametrize("layouts", [LAYOUTS, LAYOUTS[:2], LAYOUTS[:1]])
def test_a_walk_takes_every_ordered_pair_once(layouts):
    path = walk(layouts)
    assert path[0] == path[-1] == layouts[0]
    assert sorted(itertools.pairwise(path)) == sorted(itertools.permutations(layouts, 2))


def test_all_layouts():
    """1, 2, 4 and 8 devices of 1, 2 and 4 processes."""
    assert len(LAYOUTS) == 9 and {p for p, _ in LAYOUTS} == {1, 2, 4} and {p * d for p, d in LAYOUTS} == {1, 2, 4, 8}
    assert str(Layout(2, 4)) == "2x4"


def test_differences_are_noticed():
    values = np.array([0.5, np.nan, 2.0])
    for found, name, expected in (
        (values, "state", 0.0),
        (values + [0, 0, 1e-3], "state", 5e-4),
        (values[:2], "state", np.inf),
        (np.array([0.5, 1.0, 2.0]), "state", np.inf),
    ):
        assert layout_campaign._difference(name, found, values) == pytest.approx(expected)
    small = np.array([1e-3, 0.0])
    assert layout_campaign._difference("state", small * 2, small) == pytest.approx(1.0)
    assert layout_campaign._difference("seed0 metrics/accuracy", small * 2, small) == pytest.approx(1e-3)
