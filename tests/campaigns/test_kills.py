"""Studies that are killed with SIGKILL, before their file operations and at a random moment, and started again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import kill_campaign

from experiments import launch
from fedjax_collapse.config import build
from fedjax_collapse.config.resolving import resolve_arm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_kill_campaign_continues_killed_studies_to_the_same_bits(tmp_path):
    """A short campaign, of a method with states at server and clients; the whole one is the script's."""
    command = [sys.executable, "tests/campaigns/kill_campaign.py", "--methods=scaffold", "--points=1", "--random=1"]
    done = subprocess.run([*command, f"--out={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    alone, together = (re.sub(r" {2,}", " ", line) for line in done.stdout.splitlines()[1:])
    assert re.match(r"scaffold, alone 2 [01] 0 \d{3} ", alone)
    assert re.match(r"scaffold, two seeds together 2 [01] 0 \d{3} ", together)


@pytest.mark.parametrize("method", kill_campaign.METHODS)
def test_kill_campaign_methods_are_valid(tmp_path, method):
    case = kill_campaign.Case(method, (0,), tmp_path)
    case.write_config()
    build.algorithm(resolve_arm(launch.parse(case.command("whole")).config, method)).check()


def test_kill_campaign_compare_names_what_differs(tmp_path):
    """Of what two studies left: one number, a missing one, a status."""
    case = kill_campaign.Case("scaffold", (0,), tmp_path)
    case.folder.mkdir()
    case.file("killed", "log").write_text("error: something")
    for found, words in (('{"a": "1", "b": "2"}', ""), ('{"a": "1", "b": "3"}', "b"), ('{"b": "2"}', "a")):
        case.file("whole", "digests").write_text('{"a": "1", "b": "2"}')
        case.file("killed", "digests").write_text(found)
        assert kill_campaign._compare(case, 0) == words
    assert "ended with 2: error: something" in kill_campaign._compare(case, 2)
