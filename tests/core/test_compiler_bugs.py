"""Versions of JAX that compile wrongly: guarded by a flag, as long as they need it and no longer."""

import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import jaxlib
import pytest
from conftest import cases

from fedjax_collapse.core import _jax_compat, compiler_bugs
from fedjax_collapse.core._jax_compat import guard

ROOT = Path(__file__).parents[2]
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
LAST = {"small_products": "0.10.2", "rank_7": "0.10.2", "rank_8": "0.11.0", "dilated_windows": "0.12.0.1"}
IS_SEEN_HERE = sys.platform == "linux" and platform.machine() == "x86_64"  # where the versions were tried


def is_guarded():
    guard(environ := {}, is_started=lambda: False)
    return bool(environ)


@pytest.fixture
def flags():
    """A function that returns ``XLA_FLAGS`` after ``guard``; None if they are not there."""

    def guarded(given=None, version="0.10.2", is_started=False):
        environ = {} if given is None else {"XLA_FLAGS": str(given)}
        guard(environ, version, lambda: is_started)
        return environ.get("XLA_FLAGS")

    yield guarded
    _jax_compat._unguarded.clear()


def test_the_flag_is_added_to_those_of_the_user(flags):
    assert flags() == flags("") == FLAG
    assert flags("--xla_dump_to=/tmp --xla_cpu_max_isa=AVX") == f"--xla_dump_to=/tmp --xla_cpu_max_isa=AVX {FLAG}"


@pytest.mark.parametrize("own", [FLAG, f"{FLAG}dot", f"--xla_dump_to=/tmp {FLAG}+reduce --xla_cpu_max_isa=AVX"])
def test_the_same_flag_of_the_user_stays(flags, own):
    assert flags(own) == own


def test_flags_in_a_file_stay(flags, tmp_path):
    """XLA takes what does not begin with a hyphen for the name of a file, and ignores one that is not there."""
    (tmp_path / "flags").write_text("--xla_dump_to=/tmp\n")
    assert flags(tmp_path / "flags") == f"--xla_dump_to=/tmp {FLAG}"
    assert flags(tmp_path / "none") == FLAG


@cases("0.10.0", "0.10.1", "0.12.1", "0.13.0")
def test_other_versions_are_left_alone(version, flags):
    """Also those that are not out yet: one that does not know a flag ends the process."""
    assert flags("--xla_dump_to=/tmp", version) == "--xla_dump_to=/tmp" and flags(version=version) is None


@cases("0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1")
def test_versions_that_are_guarded(version, flags):
    assert flags(version=version) == FLAG


def test_a_jax_that_has_started_is_left_alone_and_told_of_once_on_cpus(flags):
    assert flags("--xla_dump_to=/tmp", is_started=True) == "--xla_dump_to=/tmp"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _jax_compat.warn_unguarded("gpu")
        with pytest.raises(UserWarning, match=rf"wrongly on CPUs .* XLA_FLAGS={FLAG} ") as error:
            _jax_compat.warn_unguarded("cpu")
    assert "\n" not in str(error.value)
    flags(is_started=True)
    with pytest.warns(UserWarning):
        _jax_compat.warn_unguarded("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _jax_compat.warn_unguarded("cpu")


LIBRARY = """
import os, sys, warnings
import jax, jax.numpy as jnp, numpy as np
if {is_late}:
    jnp.ones(1)
import fedjax_collapse
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, nn, simulate
from fedjax_collapse.core import _jax_compat, compiler_bugs
assert _jax_compat.has_started_devices() == {is_late}  # importing it starts nothing
labels = np.arange(8) % 2
images = np.ones((8, 2, 2, 1), np.uint8)
federation = Federation.from_arrays(images, labels, [np.arange(8)], images, labels, 0.0, 1.0)
for _ in range(2):
    simulate(federation, Model(nn.MLP(2), (2, 2, 1)), FedAvg(LocalTraining(1, 8, 0.1)), rounds=1, key=jax.random.key(0))
print(os.environ.get("XLA_FLAGS"))
print(*(name for name, is_right in compiler_bugs.PROGRAMS.items() if not ({is_late} or is_right())))
"""


@pytest.mark.slow
@cases(False, True)
@pytest.mark.long
def test_the_library_guards_itself_or_says_that_it_is_too_late(is_late):
    """In a fresh process, where all programs are right before JAX has started, and there is one warning after it."""
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", LIBRARY.format(is_late=is_late)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    needs_it = is_guarded()
    flags, wrong = done.stdout.splitlines()
    assert flags == (FLAG if needs_it and not is_late else "None") and not wrong
    assert done.stderr.count("UserWarning") == (needs_it and is_late)


@pytest.mark.slow
@pytest.mark.skipif(not IS_SEEN_HERE, reason="the versions were tried on Linux and x86-64")
@pytest.mark.parametrize("name", LAST)
def test_every_program_is_right_guarded_and_wrong_only_without_it(name):
    """A guard that a version no longer needs is to be dropped; and one that it needs again is to be added."""
    environ = {variable: value for variable, value in os.environ.items() if variable != "XLA_FLAGS"}
    assert compiler_bugs.is_right_in_fresh_process(name, environ | {"XLA_FLAGS": FLAG})
    version, last = map(_jax_compat._numbers, (jaxlib.__version__, LAST[name]))
    is_wrong = is_guarded() and version <= last
    assert compiler_bugs.is_right_in_fresh_process(name, environ) != is_wrong
