"""The script of long runs, on short ones."""

import json
from types import SimpleNamespace

import pytest
from campaigns import soak

pytestmark = pytest.mark.slow


def test_a_row_for_each_tenth(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(soak.CASES, "states", soak.CASES["states"]._replace(clients=20, hidden=8))
    assert soak.main(["states", "--rounds=10", f"--json={tmp_path / 'rows.json'}"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["round"] for row in rows] == list(range(1, 11))
    assert all(row["memory_mib"] > 10 and row["handles"] > 2 for row in rows)
    assert rows[-1]["written_kib_per_round"] > 0
    assert "round 10 over round 2: seconds_per_round" in capsys.readouterr().out


def test_a_run_from_a_store(tmp_path):
    reports = []
    rows = soak.write_store(tmp_path / "store", 300)
    queue = SimpleNamespace(put=reports.append)
    soak._run_stored(queue, tmp_path / "run", tmp_path / "store", 30, 4, False)
    *rounds, stored = reports
    assert rows > 300 and rounds == [1, 2, 3, 4]
    assert stored.start_seconds > 0 and stored.seconds_per_round > 0 and stored.peak_mib >= 0
