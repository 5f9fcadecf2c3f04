"""The provenance of a study's numbers, which each start adds to ``provenance.json``."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from experiments.machine import num_cores, versions
from experiments.study import self_test
from experiments.study.groups import Plan
from fedjax_collapse.config.folder import PROVENANCE
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.nn.inspection import count_lowerings
from fedjax_collapse.results.reading import read_starts

PACKAGES = ("fedjax_collapse", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "ml-collections")

Hashes = Mapping[str, Mapping[str, Mapping[str, str]]]  # of data and partition, by cell and seed


def provenance(hashes: Hashes, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """Returns where the numbers of this start come from; layouts and hashes are by cell."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "git": _git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": num_cores(),
        "devices": [str(device) for device in jax.devices()],
        "packages": versions(PACKAGES),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "self_test": self_test.verdict(),
        "convolutions": {
            cell: count_lowerings(plan.model, plan.algorithm.training.batch_size) for cell, plan in plans.items()
        },
        "layouts": {cell: str(plan.client_map) for cell, plan in plans.items()},
        "sha256": dict(hashes),
    }


def record_start(workdir: Path, start: Mapping[str, Any]) -> None:
    """Adds a start to ``provenance.json`` after the earlier ones, which may have made some of the numbers.

    A start that differs from the last only in its time is not repeated.

    Raises:
        UserError: the existing file cannot be read.
    """
    try:
        starts = read_starts(workdir)
    except UserError as error:
        raise UserError(
            f"{error}; restore it, or remove it to continue without what earlier starts recorded"
        ) from error
    if not starts or {**starts[-1], "started": None} != {**start, "started": None}:
        starts = (*starts, start)
    write_json(workdir / PROVENANCE, {"starts": starts})


def _git_revision():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
