"""What a command prints of warnings, and after Ctrl-C."""

import os
import pty
import subprocess
import sys
import warnings

from experiments import startup
from experiments.startup import STOPPING


def test_a_warning_about_data_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    startup.check_packages()
    assert warnings.formatwarning(UserWarning("two are there"), UserWarning, "a.py", 1) == "warning: two are there\n"
    assert warnings.formatwarning("old", DeprecationWarning, "a.py", 1).startswith("a.py:1: DeprecationWarning: old")


def test_after_ctrl_c_on_a_terminal_the_message_has_its_own_line():
    code = (
        "import os, signal, sys; from experiments.launch import stop_on_signal; should_stop = stop_on_signal();"
        "sys.stderr.write('half a line'); os.kill(os.getpid(), signal.SIGINT); sys.exit(should_stop())"
    )
    terminal, end = pty.openpty()
    process = subprocess.run([sys.executable, "-c", code], stdin=end, stdout=end, stderr=end)
    assert process.returncode == 1 and os.read(terminal, 10**4).decode() == f"half a line\r\n{STOPPING}\r\n"


def test_a_damaged_entry_of_the_cache_of_programs_is_compiled_again(tmp_path):
    """Silently, as another process may be writing it."""
    code = (
        "import sys, pathlib, jax; from experiments.devices import configure_jax; configure_jax(sys.argv[1]);"
        "jax.jit(abs)(-1.0); entries = list(pathlib.Path(sys.argv[1]).glob('*abs*-cache')); jax.clear_caches();"
        "assert {path.write_bytes(b'') for path in entries} == {0} and jax.jit(abs)(-1.0) == 1.0"
    )
    process = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
