"""Kills small studies with SIGKILL, starts them again, and compares every bit of what they leave with a study that was
not killed: python experiments/kill_campaign.py [--methods=feddecorr,scaffold] [--points=N] [--random=N] [--out=FOLDER]

Forced points are Python's file operations below the study's folder (opening for writing, renaming, removing, making a
folder), each of which is one; the process ends just before it. Every method is killed alone and with two seeds that
are trained together. What is compared: metrics, arrays, final variables, and the states of server and clients in the
last checkpoint. Exit status: 0, or 1 if something differs.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that ``experiments`` is found from any folder

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from experiments import launch, study
from fedjax_collapse.arrays import read_npz
from fedjax_collapse.checkpoint import Checkpoints
from fedjax_collapse.hashing import digest

METHODS = {
    "feddecorr": "dict(regularizers=dict(feddecorr=dict(strength=0.1)))",
    "scaffold": "dict(algorithm=dict(name='scaffold'))",
    "moon": "dict(regularizers=dict(moon=dict(strength=1.0)))",
    "fedbn": "dict(batch_norm='local', network=dict(name='small_cnn', channels=(2,)))",
    "fedmr": "dict(regularizers=dict(fedmr=dict(inter=0.1)))",
}
_CONFIG = """
from experiments.configs import base


def get_config(arg=""):
    config = base.get_config()
    config.rounds, config.checkpoint_every, config.clients = 3, 1, 3
    config.seeds = {seeds}
    config.training.epochs, config.training.batch_size = 1, 256
    config.network = dict(name="mlp", hidden=(6,))
    config.engine.runs = "together"
    config.arms = dict({method}={changes})
    return config
"""
_KILLED = -signal.SIGKILL


class Case(NamedTuple):
    """A study, and the folder in which it is tried."""

    method: str
    seeds: tuple[int, ...]
    out: Path

    def __str__(self) -> str:
        return f"{self.method}, {'alone' if len(self.seeds) == 1 else 'two seeds together'}"

    @property
    def folder(self) -> Path:
        return self.out / f"{self.method}-{len(self.seeds)}"

    def file(self, name: str, kind: str) -> Path:
        """What a start in the folder ``name`` has left: ``operations`` or ``digests``."""
        return self.folder / f"{name}-{kind}.json"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def write_config(self) -> None:
        self.folder.mkdir(parents=True)
        text = _CONFIG.format(seeds=self.seeds, method=self.method, changes=METHODS[self.method])
        (self.folder / "config.py").write_text(text)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = _parse(arguments)
    moments = random.Random(options.seed)
    is_same = True
    print(f"{'study':32} kills late differ operations seconds", flush=True)
    for method, seeds in itertools.product(options.methods, ((0,), (0, 1))):
        case, start = Case(method, seeds, options.out), time.perf_counter()
        operations, differing, num_late, num_kills = try_case(case, options.points, options.random, moments)
        is_same = is_same and not differing
        counts = f"{num_kills:5} {num_late:4} {len(differing):6} {operations:10} {time.perf_counter() - start:7.0f}"
        print(f"{case!s:32} {counts}", *(f"\n  {line}" for line in differing), flush=True)
    return 0 if is_same else 1


def try_case(case: Case, num_points: int, num_random: int, moments: random.Random) -> tuple[int, list[str], int, int]:
    """Operations of the study; what differs after which kill; kills that came too late; kills."""
    case.write_config()
    seconds = _seconds_of_whole(case)
    operations = json.loads(case.file("whole", "operations").read_text())
    kills = [(f"before {n}, {operations[n]}", n, None) for n in choose(operations, num_points)]
    kills += [(f"after {s:.2f} s", None, s) for s in (seconds * moments.random() for _ in range(num_random))]
    differing, num_late = [], 0
    for what, number, moment in kills:
        num_late += _run(case, "killed", number, moment) != _KILLED
        if differences := _compare(case, _run(case, "killed")):
            differing.append(f"{what}: {differences}")
            shutil.copytree(case.folder / "killed", case.folder / f"differs{len(differing)}")
        shutil.rmtree(case.folder / "killed")
    return len(operations), differing, num_late, len(kills)


def _seconds_of_whole(case):
    """Of the study that is not killed, without compilation; a second time it leaves the same."""
    if _run(case, "whole"):
        raise RuntimeError(f"the study itself fails: see {case.log('whole')}")
    start = time.perf_counter()
    if differences := _compare(case, _run(case, "killed")):
        raise RuntimeError(f"the study itself does not leave the same twice: {differences}")
    shutil.rmtree(case.folder / "killed")
    return time.perf_counter() - start


def _compare(case, status):
    """How a study that was killed and has ended with a status differs from the whole one; empty if it does not."""
    if status:
        return f"the second start ended with {status}: {case.log('killed').read_text()[-300:]}"
    expected, found = (json.loads(case.file(name, "digests").read_text()) for name in ("whole", "killed"))
    return ", ".join(sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)))


def choose(operations: Sequence[str], count: int) -> list[int]:
    """The numbers of so many operations, of different kinds as far as there are; all of them for 0."""
    if count == 0 or count >= len(operations):
        return list(range(len(operations)))
    kinds: dict[str, list[int]] = {}
    for number, operation in enumerate(operations):
        kinds.setdefault(re.sub(r"[0-9a-f]{6,}|\d+", "#", operation), []).append(number)
    last_first = [sorted(numbers, reverse=True) for numbers in kinds.values()]
    in_turn = [n for turn in itertools.zip_longest(*last_first) for n in turn if n is not None]
    step = max(1, len(kinds) // count)
    return sorted((in_turn[: len(kinds)][::step] + in_turn[len(kinds) :])[:count])


def digests(folder: Path) -> dict[str, str]:
    """What of a study has to be equal, by name: hashes of files and of arrays."""
    found = {"summary.json": (folder / "summary.json").read_text()}
    for run in folder.glob("*/seed*"):
        name = run.relative_to(folder).as_posix()
        found[f"{name} metrics.jsonl"] = (run / "metrics.jsonl").read_text()
        for path in run.glob("*.npz"):
            found |= {f"{name} {path.name} {array}": digest(values) for array, values in read_npz(path).items()}
        last = max(Checkpoints(run / "checkpoints").rounds)
        state = jax.tree.leaves_with_path(ocp.load(run / "checkpoints" / str(last)))
        found |= {f"{name} round {last} {jax.tree_util.keystr(p)}": digest(_as_numbers(leaf)) for p, leaf in state}
    return found


def _as_numbers(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _run(case, name, kill_at=None, kill_after=None) -> int:
    """Starts the study in a child, and kills it; its exit status, of a killed one negative."""
    child = os.fork()  # before JAX has started anything: what it imports is there, and it starts its own backend
    if child == 0:
        try:
            os._exit(_child(case, name, kill_at))
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(case, name, kill_at):
    """The launcher, as a process of its own would run it; then what it did and left is written down."""
    log = os.open(case.log(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    workdir = case.folder / name
    study.write_report = lambda workdir: workdir  # it takes longer than all else
    operations = _watch(workdir, kill_at)
    command = [f"--config={case.folder / 'config.py'}", f"--workdir={workdir}"]
    try:
        status = launch.main([*command, f"--compilation_cache={case.out / 'compiled'}"])
        case.file(name, "operations").write_text(json.dumps(operations))
        if status == 0:
            case.file(name, "digests").write_text(json.dumps(digests(workdir)))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _watch(workdir, kill_at):
    """Operations on files below the folder from now on; before one of them the process is killed."""
    operations, below = [], f"{workdir}{os.sep}"
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")

    def hook(event, arguments):
        is_opened = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not (is_opened or event in changes) or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(below):
            if len(operations) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            operations.append(f"{event} {path.removeprefix(below)}")

    sys.addaudithook(hook)
    return operations


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--points", type=int, default=12, metavar="N", help="forced points for each study; 0 is all")
    parser.add_argument("--random", type=int, default=2, metavar="N", help="kills at random moments for each study")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", type=Path, help="folder to work in, default a temporary one")
    options = parser.parse_args(arguments)
    options.methods = options.methods.split(",")
    if unknown := [method for method in options.methods if method not in METHODS]:
        parser.error(f"unknown method {unknown[0]!r}, expected some of {', '.join(METHODS)}")
    options.out = Path(tempfile.mkdtemp(prefix="kills-", dir=options.out) if options.out is None else options.out)
    options.out = options.out.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
