"""Programs that some versions of jaxlib compile wrongly for CPUs.

The bugs are of YNNPACK, which ``_jax_compat.guard`` disables. ``fedjax-collapse check`` runs these programs in any
version, each in a fresh process, since some crash:

    python fedjax_collapse/core/compiler_bugs.py rank_7        # exit status 0: right; anything else: wrong
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

_SECONDS = 60  # after which a program is considered to hang


def is_right_in_fresh_process(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a program is right with these environment variables. A crash or hang is wrong."""
    command = [sys.executable, "-P", str(Path(__file__).resolve()), name]
    options = dict(env={**environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, timeout=_SECONDS)
    try:
        return subprocess.run(command, **options).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _small_products():
    """The last row of 32,769 is wrong by 0.8 %.

    https://github.com/jax-ml/jax/issues/39103
    """
    rows = np.arange(3 * 32_769, dtype=np.float32).reshape(-1, 3)
    found = jax.jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(rows)
    return np.allclose(found, np.sum(rows.astype(np.float64) ** 2, axis=1), rtol=1e-5)


def _rank_7():
    """Crashes the process.

    https://github.com/jax-ml/jax/issues/40412
    """
    first, second = np.random.default_rng(0).normal(size=(2, 3, 1, 2, 2, 8, 8, 8)).astype(np.float32)
    found = jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(first, second)
    return np.allclose(found, np.sum(first * second, axis=3), atol=1e-5)


def _rank_8():
    """Crashes the process, or never returns.

    https://github.com/jax-ml/jax/issues/39257
    """

    def evidence(weights, likelihoods):
        summed = jnp.sum(weights[..., None, None, None, None, None] * likelihoods, axis=2)
        return jnp.log(jnp.maximum(summed, 1e-16))

    weights, likelihoods = np.full((10, 4, 6), 0.5, np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    return np.allclose(jax.jit(evidence)(weights, likelihoods), np.log(3.0), atol=1e-5)


def _dilated_windows():
    """A maximum over windows of one column treats the gaps between dilated columns as columns.

    https://github.com/openxla/xla/issues/48714
    """
    rows = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    pooled = jax.lax.reduce_window(
        rows, -np.inf, jax.lax.max, (2, 1), (2, 1), ((0, 0), (0, 0)), base_dilation=(1, 2)
    )  # fmt: skip
    expected = np.full((32, 255), -np.inf, np.float32)
    expected[:, ::2] = np.maximum(rows[::2], rows[1::2])
    return np.array_equal(pooled, expected)


PROGRAMS: dict[str, Callable[[], bool]] = {
    "small_products": _small_products,
    "rank_7": _rank_7,
    "rank_8": _rank_8,
    "dilated_windows": _dilated_windows,
}

if __name__ == "__main__":
    sys.exit(not PROGRAMS[sys.argv[1]]())
