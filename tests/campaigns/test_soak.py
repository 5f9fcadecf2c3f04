"""The script of long runs, on a short one."""

from types import SimpleNamespace

import pytest
from campaigns import soak

pytestmark = pytest.mark.slow


def test_soak_store_reports_every_round_and_the_run(tmp_path):
    reports = []
    rows = soak.write_store(tmp_path / "store", 300)
    queue = SimpleNamespace(put=reports.append)
    soak._run_stored(queue, tmp_path / "run", tmp_path / "store", 30, 4, False)
    *rounds, stored = reports
    assert rows > 300 and rounds == [1, 2, 3, 4]
    assert stored.start_seconds > 0 and stored.seconds_per_round > 0 and stored.peak_mib >= 0
