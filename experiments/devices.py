"""JAX's devices, and its cache of compiled programs."""

import logging
import os
import sys
import warnings
from pathlib import Path

import jax

from fedjax_collapse.core.files import make_cache
from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.user_code import one_line


def configure_jax(cache: str) -> None:
    """Caches compiled programs between runs, and silences Orbax."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs what it raises, a thousand lines for a full disk
    if not cache:
        return
    try:
        make_cache(Path(cache))
    except OSError as error:
        print(
            f"warning: compiled programs are not cached ({error}); choose another --compilation_cache", file=sys.stderr
        )
        return
    # another process may still be writing the entry: JAX then compiles, and the numbers are the same
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def check_devices() -> None:
    """Raises UserError if JAX finds no devices, for example because ``JAX_PLATFORMS`` names a missing platform."""
    try:
        jax.devices()
    except Exception as error:  # depends on the plugin; an empty assertion if none is installed
        platforms = os.environ.get("JAX_PLATFORMS")
        problem = one_line(error) if str(error) else "no requested platform is installed and has a device"
        hint = "see JAX's installation guide"
        if platforms:
            hint = f"JAX_PLATFORMS={platforms}; unset it to use the devices of this machine"
        raise UserError(f"JAX has no devices to run on: {problem} ({hint})") from error
