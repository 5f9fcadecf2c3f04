"""The script of a run from a store, on a small one."""

import pytest
from campaigns import soak


@pytest.mark.slow
def test_soak_measures_a_run_from_a_store(said):
    heading, *rows = said(soak, "--clients=300", "--rounds=4", "--scaffold").splitlines()
    assert heading.startswith("store of 300 clients, ")
    found = {name: float(value) for name, value in map(str.split, rows)}
    assert min(found["start"], found["per_round"]) > 0 and found["peak_mib"] >= found["index_mib"]
