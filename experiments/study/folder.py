"""The names of all files and folders that a study leaves; no other module of ``experiments`` spells them.

A run's folder in a study's folder is ``<setting>/<arm>/seed<k>``, or ``<arm>/seed<k>`` where the study has no settings.
"""

from pathlib import Path

CONFIG = "config.json"  # in a study's folder: the config, with a value for every key
PROVENANCE = "provenance.json"  # what each start was started with
REPORT = "report.html"
REPLACED = "replaced"  # runs that were set aside
EXPORT = "export"  # figures and tables as files
JOBS = ".jobs"  # after the folder's own name: the logs of Slurm's jobs

SUMMARY = "summary.json"  # in the folder of a study, and of a run that is finished
LOCK = ".lock"  # likewise, of any run
START_LOCK = ".lock.start"

METRICS = "metrics.jsonl"  # in a run's folder; the library writes it, and the next two
TIMING = "timing.jsonl"
CHECKPOINTS = "checkpoints"
PARTITION = "partition.npz"
TOGETHER = "together.json"  # the runs that it is trained with
ERROR_LOG = "error.log"  # one line on what went wrong, and where in the code it happened

RESERVED = (EXPORT, REPLACED)  # names at the top of a study's folder that neither a setting nor an arm may have,
RESERVED_FILES = (CONFIG, PROVENANCE, SUMMARY, REPORT, LOCK)  # as these files, also while they are written


def run_folder(study: Path, name: tuple[str, int]) -> Path:
    """The folder of the run with that cell and seed."""
    cell, seed = name
    return study / cell / f"seed{seed}"


def seed_of(run: Path) -> int | None:
    """The seed of the run whose folder that is; None if it cannot be the folder of a run."""
    seed = run.name.removeprefix("seed")
    return int(seed) if run.name.startswith("seed") and seed.isdecimal() else None


def study_of(run: Path) -> tuple[Path, str]:
    """The study's folder and the setting of a run's folder; the setting is empty if the study has none."""
    above = [*run.parents, *[Path(run.anchor)] * 3]  # also of a folder near the root
    return (above[1], "") if (above[1] / CONFIG).exists() else (above[2], above[1].name)


def is_finished(run: Path) -> bool:
    """Whether the run in this folder is finished."""
    return (run / SUMMARY).exists()
