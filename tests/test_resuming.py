"""``--resume``, and what is said where a run goes on in another layout."""

import json
import re

import pytest

from experiments import launch
from experiments.reporting.reading import layouts_of
from experiments.resuming import changed_layouts, check_resume
from fedjax_collapse import UserError

pytestmark = pytest.mark.slow

NAMES = [("fedavg", 0), ("fedavg", 1), ("feddecorr", 0)]
START = {"devices": ["TFRT_CPU_0", "TFRT_CPU_1"], "layouts": {"fedavg": "1 client at a time on each of 2 devices"}}


def test_must_and_never(tmp_path):
    study = tmp_path / "study"
    check_resume("never", study, NAMES)
    with pytest.raises(UserError, match=r"resume=must: .*study has nothing of fedavg seed 0, fedavg seed 1, feddecorr"):
        check_resume("must", study, NAMES)
    for arm, seed in NAMES[:2]:
        (study / arm / f"seed{seed}").mkdir(parents=True)
    check_resume("must", study, NAMES[:2])
    check_resume("auto", study, NAMES)
    with pytest.raises(UserError, match="has nothing of feddecorr seed 0 to go on from"):
        check_resume("must", study, NAMES)
    with pytest.raises(UserError, match=r"resume=never: .*study holds fedavg seed 0, fedavg seed 1, started before"):
        check_resume("never", study, NAMES)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a study of one small run; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "configure_jax", lambda cache: None)
    (tmp_path / "small.py").write_text(
        "from experiments.configs import base\n"
        "def get_config(arg=''):\n"
        "    config = base.get_config()\n"
        "    config.network, config.training.epochs, config.clients = dict(name='mlp', hidden=(6,)), 1, 3\n"
        "    config.rounds, config.arms = 2, dict(fedavg=dict())\n"
        "    return config\n"
    )
    return lambda *arguments: launch.main(["--config=small.py", "--workdir=study", *arguments])


def test_wrong_expectations_are_one_line_and_nothing_is_touched(start, tmp_path, capsys):
    assert start("--resume=must") == 2
    assert start("--resume=maybe") == 2
    assert not (tmp_path / "study").exists()
    (tmp_path / "study" / "fedavg" / "seed0").mkdir(parents=True)
    assert start("--resume=never") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("error: ") for line in lines)
    assert "<auto|must|never>" in lines[1]
    assert [path.name for path in (tmp_path / "study").rglob("*")] == ["fedavg", "seed0"]


def test_another_layout_is_said_in_the_run_and_in_the_report(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "stop_on_signal", lambda: lambda: True)
    assert start("--resume=never") == launch.STOPPED
    path = tmp_path / "study" / "provenance.json"
    (first,) = json.loads(path.read_text())["starts"]
    first["layouts"]["fedavg"] = "3 clients at a time on each of 4 devices"
    path.write_text(json.dumps({"starts": [first]}))
    monkeypatch.setattr(launch, "stop_on_signal", lambda: lambda: False)
    capsys.readouterr()
    assert start("--resume=must") == 0
    said = "fedavg: goes on with .*, started with 3 clients at a time on each of 4 devices .*: rounding may differ"
    assert any(re.match(said, line) for line in capsys.readouterr().out.splitlines())
    starts = json.loads(path.read_text())["starts"]
    assert len(starts) == 2 and starts[0] == first and starts[1]["layouts"] != first["layouts"]
    page = (tmp_path / "study" / "report.html").read_text()
    assert "starts have trained it with 3 clients at a time on each of 4 devices" in page
    assert start() == 0  # finished: nothing goes on
    assert "rounding may differ" not in capsys.readouterr().out


def test_layouts_and_devices_by_arm(tmp_path):
    gpu = START | {"devices": ["cuda:0"], "layouts": {"fedavg": "5 clients at a time", "new": "x"}}
    gpu |= {"convolutions": {"new": {"xla": 2, "patches": 1}, "fedavg": {}}}
    assert layouts_of([START, {}, START, gpu]) == {
        "fedavg": ["1 client at a time on each of 2 devices (TFRT_CPU)", "5 clients at a time (cuda)"],
        "new": ["x (cuda; convolutions: 1 patches, 2 xla)"],
    }
    (tmp_path / "provenance.json").write_text(json.dumps({"starts": [START, gpu]}))
    assert changed_layouts(tmp_path, [("fedavg", 0)]) == []  # nothing was saved that could go on
    (tmp_path / "fedavg" / "seed0" / "checkpoints" / "3").mkdir(parents=True)
    assert len(changed_layouts(tmp_path, [("fedavg", 0)])) == 1
