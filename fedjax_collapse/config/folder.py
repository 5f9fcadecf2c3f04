"""The names of all files and folders that a study writes.

A run's folder in a study's folder is ``<setting>/<arm>/seed<k>``, or ``<arm>/seed<k>`` if the study has no settings.
"""

from pathlib import Path

CONFIG = "config.json"  # in a study's folder: the config, with a value for every key
ARMS = "arms.json"  # in the folder of a script's study, in place of a config: arms, seeds and rounds
PROVENANCE = "provenance.json"  # command, versions and devices of each start
REPORT = "report.html"
NUMBERS = "report"  # a report's figures as CSV files, and its inputs
MADE_FROM = "made_from.json"
REPLACED = "replaced"  # runs that were set aside
EXPORT = "export"  # figures and tables as files
JOBS = ".jobs"  # after the folder's own name: the logs of Slurm's jobs

SUMMARY = "summary.json"  # in the folder of a study, and of a finished run
LOCK = ".lock"  # in the folder of a study, and of any run
START_LOCK = ".lock.start"

METRICS = "metrics.jsonl"  # in a run's folder; the library writes it, and the next two
TIMING = "timing.jsonl"
CHECKPOINTS = "checkpoints"
PARTITION = "partition.npz"
TOGETHER = "together.json"  # the runs that it is batched with
ERROR_LOG = "error.log"  # a one-line message, and the traceback

RESERVED = (EXPORT, NUMBERS, REPLACED)  # names in a study's folder that neither a setting nor an arm may have;
# likewise, also with a suffix while they are written
RESERVED_FILES = (CONFIG, ARMS, PROVENANCE, SUMMARY, REPORT, LOCK)


def run_folder(study: Path, name: tuple[str, int]) -> Path:
    """Returns the folder of the run with this cell and seed."""
    cell, seed = name
    return study / cell / f"seed{seed}"


def seed_of(run: Path) -> int | None:
    """Returns the seed of a run's folder; None if the folder cannot be a run's."""
    seed = run.name.removeprefix("seed")
    return int(seed) if run.name.startswith("seed") and seed.isdecimal() else None


def study_of(run: Path) -> tuple[Path, str]:
    """Returns the study's folder and the setting of a run's folder; the setting is empty if the study has none."""
    above = [*run.parents, *[Path(run.anchor)] * 3]  # also for a folder near the root
    return (above[1], "") if (above[1] / CONFIG).exists() else (above[2], above[1].name)


def is_finished(run: Path) -> bool:
    """Returns whether the run in this folder is finished."""
    return (run / SUMMARY).exists()
