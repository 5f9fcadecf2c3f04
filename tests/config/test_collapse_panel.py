"""The config that measures everything for the arms of another one."""

import pytest

from experiments.configs import collapse_panel, label_skew
from fedjax_collapse.core.records import UserError


def test_arms_baselines_and_measurements_of_another_config():
    config = collapse_panel.get_config("label_skew:digits")
    theirs = label_skew.get_config("digits")
    assert set(config.arms) == set(theirs.arms) | set(collapse_panel.BASELINES)
    assert config.arms.fedlc == theirs.arms.fedlc and config.seeds == (0, 1, 2) and config.watch == "all"
    assert set(config.measurements) == set(collapse_panel.PANEL) and config.measure_every == 4


def test_a_config_that_is_not_there():
    with pytest.raises(UserError, match=r"^collapse_panel:missing\.py:x: no such file; "):
        collapse_panel.get_config("missing.py:x")
