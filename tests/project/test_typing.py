"""Type checkers see the public names with their parameters, in a user's script outside of the clone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import long_where

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("user_script.py")
CHECKERS = {"mypy": ["--warn-unused-ignores", "--cache-dir=cache"], "pyright": ["--project=pyright.json"]}


@pytest.mark.parametrize("checker", long_where(["mypy"], CHECKERS))
def test_a_script_is_checked(tmp_path, checker):
    """What is right passes; each wrong line, marked ``type: ignore``, is an error."""
    shutil.copy(SCRIPT, tmp_path)
    options = {"include": [SCRIPT.name], "reportUnnecessaryTypeIgnoreComment": "error"}
    (tmp_path / "pyright.json").write_text(json.dumps(options))
    here = {"pyright": [f"--pythonpath={sys.executable}"], "mypy": [SCRIPT.name]}[checker]
    command = [sys.executable, "-m", checker, *CHECKERS[checker], *here]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
