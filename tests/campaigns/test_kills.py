"""Studies that are killed with SIGKILL, before their file operations and at a random moment, and started again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import kill_campaign

from experiments import launch
from experiments.config import build
from experiments.config.resolving import resolve_arm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_a_study_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    """A short campaign, of a method with states at server and clients; the whole one is the script's."""
    command = [sys.executable, "tests/campaigns/kill_campaign.py", "--methods=scaffold", "--points=2", "--random=1"]
    done = subprocess.run([*command, f"--out={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    alone, together = (re.sub(r" {2,}", " ", line) for line in done.stdout.splitlines()[1:])
    assert re.match(r"scaffold, alone 3 [01] 0 0 \d{3} ", alone)
    assert re.match(r"scaffold, two seeds together 3 [01] 0 0 \d{3} ", together)


@pytest.mark.parametrize("method", kill_campaign.METHODS)
def test_every_method_of_the_campaign_is_one(tmp_path, method):
    case = kill_campaign.Case(method, (0,), tmp_path)
    case.write_config()
    config = launch.parse([f"--config={case.folder / 'config.py'}"]).config
    build.algorithm(resolve_arm(config, method)).check()


def test_a_difference_is_noticed(tmp_path):
    """Of what two studies left: one number, a missing one, a status."""
    case = kill_campaign.Case("scaffold", (0,), tmp_path)
    case.folder.mkdir()
    case.log("killed").write_text("error: something")
    for found, words in (('{"a": "1", "b": "2"}', ""), ('{"a": "1", "b": "3"}', "b"), ('{"b": "2"}', "a")):
        case.file("whole", "digests").write_text('{"a": "1", "b": "2"}')
        case.file("killed", "digests").write_text(found)
        assert kill_campaign._compare(case, 0) == words
    assert "ended with 2: error: something" in kill_campaign._compare(case, 2)


def test_points_are_of_different_kinds():
    operations = ["open a1", "os.rename a1", "open a2", "os.rename a2", "open final"]
    assert kill_campaign.choose(operations, 0) == [0, 1, 2, 3, 4] == kill_campaign.choose(operations, 9)
    assert kill_campaign.choose(operations, 3) == [2, 3, 4]
    assert len(kill_campaign.choose(operations, 2)) == 2


def test_what_a_kill_would_leave_is_copied_before_each_operation(tmp_path):
    """Of the folder alone; those that change nothing leave the same."""
    case = kill_campaign.Case("scaffold", (0,), tmp_path)
    whole = case.folder / "whole"
    whole.mkdir(parents=True)
    hook = kill_campaign._hook(whole, case.copy)

    def open_file(path, flags=os.O_WRONLY | os.O_CREAT):
        hook("open", (str(path), "w", flags))
        if flags != os.O_RDONLY:
            path.write_text("x")

    open_file(whole / "a")
    open_file(case.folder / "beside")
    open_file(whole / "a", os.O_RDONLY)
    open_file(whole / "a")
    hook("os.mkdir", (str(whole / "b"), 0o777, -1))
    (whole / "b").mkdir()
    hook("os.rename", (whole / "a", whole / "c", -1, -1))
    assert case.file("whole", "operations").read_text().splitlines() == [
        "open a",
        "open a",
        "os.mkdir b",
        "os.rename a",
    ]
    left = [sorted(path.name for path in copy.iterdir()) for copy in kill_campaign._different(case.copies)]
    assert left == [[], ["a"], ["a", "b"]]
