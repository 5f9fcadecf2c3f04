"""Known miscompilations: the versions that have them, the flag that avoids them, and programs that show them.

All are bugs of XLA on CPUs and come from YNNPACK, a library to which XLA delegates reductions since jaxlib 0.10.2
unless a flag disables it. Importing ``fedjax_collapse`` sets that flag (``guard``). ``fedjax-collapse check`` runs the
programs below in any version, each in a fresh process, since some crash:

    python fedjax_collapse/core/compiler_bugs.py rank_7        # exit status 0: right; anything else: wrong
"""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

_SECONDS = 60  # after which a program is considered to hang
_unguarded: list[str] = []  # flags that this process needs but that could not be set in time


class Bug(NamedTuple):
    """A program that is compiled wrongly on CPUs.

    Args:
        first: the first version of jaxlib that was seen to fail.
        last: the last version of jaxlib that was seen to fail.
        flag: what ``XLA_FLAGS`` has to contain.
        report: the bug report at JAX or XLA.
        is_right: returns whether the program is right in this process, which it may crash.
    """

    first: str
    last: str
    flag: str
    report: str
    is_right: Callable[[], bool]


def _is_started():
    # not at the top, since importing the package sets flags
    from fedjax_collapse.core._jax_compat import has_started_devices

    return has_started_devices()


def guard(
    environ: MutableMapping[str, str] = os.environ,
    version: str = jaxlib.__version__,
    is_started: Callable[[], bool] = _is_started,
) -> None:
    """Adds the flags that this version of jaxlib needs to ``XLA_FLAGS``; flags that are already set are left alone.

    XLA reads the variable when JAX starts its devices. Nothing is changed after that: the flags would have no effect,
    and programs would enter JAX's compilation cache under a wrong key. ``warn_unguarded`` then warns about the missing
    flags.
    """
    given = _given_flags(environ)
    needed = dict.fromkeys(bug.flag for bug in BUGS.values() if _is_within(bug, version))
    missing = [flag for flag in needed if not re.search(rf"{flag.split('=')[0]}(=|\s|$)", given)]
    if missing and is_started():
        _unguarded[:] = missing
    elif missing:
        environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()


def warn_unguarded(platform: str) -> None:
    """Warns, once, if programs are compiled for this platform by a JAX that started without a flag that it needs."""
    if _unguarded and platform == "cpu":
        warnings.warn(
            f"jaxlib {jaxlib.__version__} is known to compute some programs wrongly on CPUs and has started without "
            f"the flag against it: import fedjax_collapse before anything uses a device, or set "
            f"XLA_FLAGS={' '.join(_unguarded)} (docs/troubleshooting.md)",
            stacklevel=2,
        )
        _unguarded.clear()


def is_right_in_fresh_process(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a bug's program is right with these environment variables; False also if it crashes or hangs."""
    command = [sys.executable, "-P", str(Path(__file__).resolve()), name]
    options = dict(env={**environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, timeout=_SECONDS)
    try:
        return subprocess.run(command, **options).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _given_flags(environ):
    """Returns the flags of the variable, which may also be the name of a file that contains them."""
    given = environ.get("XLA_FLAGS", "").strip()
    if not given or given.startswith("-"):
        return given
    try:
        return Path(given).read_text().strip()
    except OSError:  # XLA ignores a missing file
        return ""


def _is_within(bug, version):
    return _numbers(bug.first) <= _numbers(version) <= _numbers(bug.last)


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)[:4]]


def _small_products():
    """The last row of 32,769 is wrong by 0.8 %."""
    rows = np.arange(3 * 32_769, dtype=np.float32).reshape(-1, 3)
    found = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(rows)
    return np.allclose(found, np.sum(rows.astype(np.float64) ** 2, axis=1), rtol=1e-5)


def _rank_7():
    """Crashes the process."""
    first, second = np.random.default_rng(0).normal(size=(2, 3, 1, 2, 2, 8, 8, 8)).astype(np.float32)
    found = jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(first, second)
    return np.allclose(found, np.sum(first * second, axis=3), atol=1e-5)


def _rank_8():
    """Crashes the process, or never returns."""

    def evidence(weights, likelihoods):
        summed = jnp.sum(weights[..., None, None, None, None, None] * likelihoods, axis=2)
        return jnp.log(jnp.maximum(summed, 1e-16))

    weights, likelihoods = np.full((10, 4, 6), 0.5, np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    return np.allclose(jax.jit(evidence)(weights, likelihoods), np.log(3.0), atol=1e-5)


def _dilated_windows():
    """A maximum over windows of one column treats the gaps between dilated columns as columns."""
    rows = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    pooled = jax.lax.reduce_window(
        rows, -np.inf, jax.lax.max, (2, 1), (2, 1), ((0, 0), (0, 0)), base_dilation=(1, 2)
    )  # fmt: skip
    expected = np.full((32, 255), -np.inf, np.float32)
    expected[:, ::2] = np.maximum(rows[::2], rows[1::2])
    return np.array_equal(pooled, expected)


_JAX, _XLA = "https://github.com/jax-ml/jax/issues/", "https://github.com/openxla/xla/issues/"
_WITHOUT_YNNPACK = "--xla_cpu_experimental_ynn_fusion_type="
BUGS = {
    "small_products": Bug("0.10.2", "0.10.2", _WITHOUT_YNNPACK, f"{_JAX}39103", _small_products),
    "rank_7": Bug("0.10.2", "0.10.2", _WITHOUT_YNNPACK, f"{_JAX}40412", _rank_7),
    "rank_8": Bug("0.10.2", "0.11.0", _WITHOUT_YNNPACK, f"{_JAX}39257", _rank_8),
    "dilated_windows": Bug("0.10.2", "0.12.0.1", _WITHOUT_YNNPACK, f"{_XLA}48714", _dilated_windows),
}

if __name__ == "__main__":
    sys.exit(not BUGS[sys.argv[1]].is_right())
