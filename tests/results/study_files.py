"""Studies as files, with numbers that are given."""

import json
from pathlib import Path

import numpy as np

from fedjax_collapse.run.measurement import HEADLINES

ARMS = ("base", "decorr strength=0.1", "decorr strength=1")  # of ``write_cells``
PAPER = dict(source="X & Y, Table_1", comparable=False, why="small data", values={"a 1": {"base": 50.5}, "b": {}})
LIKE = {"base": [0.50, 0.60, 0.70], "near": [0.52, 0.58, 0.71], "far": [0.40, 0.51, 0.59]}  # three seeds


def write_run(folder: Path, rows, headline="server", counts=4, classes=10):
    """Writes a finished run with these rows, one a round, and as many examples of each class at each client."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"round": i} | row) + "\n" for i, row in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("".join(rows))
    (folder / "summary.json").write_text(json.dumps({"headline": HEADLINES[headline]}))
    np.savez(folder / "partition.npz", class_counts=np.full((3, classes), counts))


def write_arms(path: Path, accuracies, headlines=(), setting="", **config) -> Path:
    """Writes a study of two rounds with these accuracies by arm and seed; R is the negative seed."""
    for arm, values in accuracies.items():
        for seed, value in enumerate(values):
            row = dict(accuracy=value, effective_rank=20.0 - 2 * seed - len(arm), R=-seed)
            write_run(path / setting / arm / f"seed{seed}", [row] * 2, dict(headlines).get(arm, "server"))
    return configure(path, **dict(rounds=2, seeds=[0, 1, 2], arms={arm: {} for arm in accuracies}) | config)


def write_cells(path: Path, settings=("a 1", "b"), **config) -> Path:
    """Writes two settings, the first without a run; accuracies are 0.5, 0.6, 0.7 by arm, plus 0.01, 0.02, 0.03.

    The increases are those of the second seed. There are two classes, and every seed has a partition of its own.
    """
    for setting in settings or [""]:
        for i, arm in enumerate(ARMS):
            for seed in (0, 1) if (setting, i) != ("a 1", 2) else (1,):
                rows = [dict(accuracy=0.1 * (i + 3 + r) + 0.01 * seed * (i + 1), R=-1.0 * i) for r in (1, 2)]
                write_run(path / setting / arm / f"seed{seed}", rows, counts=4 + seed, classes=2)
    swept = dict(arms=dict(base={}, decorr=dict(training=dict(strength=0))), sweep={"training.strength": [0.1, 1]})
    of_settings = dict(settings={name: {} for name in settings}, means={"both": [*settings]}) if settings else {}
    common = dict(rounds=2, seeds=[0, 1], data=dict(source="digits"), paper=PAPER if settings else {})
    return configure(path, **common | swept | of_settings | config)


def configure(path: Path, **changes) -> Path:
    """Changes keys of the config of a study."""
    file = path / "config.json"
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | changes))
    return path


def rewrite(folder: Path, pattern: str, change) -> None:
    """Replaces each row of files of runs by ``change`` of it, its index and the seed; one that is None is left out."""
    for file in [*folder.glob(pattern)]:
        seed, lines = int(file.parent.name[4:]), file.read_text().splitlines()
        rows = [change(json.loads(line), i, seed) for i, line in enumerate(lines)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def unfinish(folder: Path, *runs: str) -> Path:
    """Leaves these runs after the first of their two rounds."""
    for run in runs:
        (folder / run / "summary.json").unlink()
        rewrite(folder, f"{run}/metrics.jsonl", lambda row, i, _: None if i else row)
    return folder
