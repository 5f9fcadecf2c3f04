"""Kills small studies, starts them again, and compares every bit that they leave with studies that were not killed.

    python tests/campaigns/kill_campaign.py [--methods=feddecorr,scaffold] [--points=N] [--random=N]

The signal is SIGKILL. Forced points are Python's file operations below the study's folder (opening for writing,
renaming, removing, making a folder), each of which is one; the process ends just before it. Every method is killed
alone and with two seeds that are trained together. What is compared: metrics, arrays, final variables, and the states
of server and clients in the last checkpoint. Exit status: 0, or 1 if something differs.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that ``experiments`` is found from any folder

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from experiments import launch
from experiments.startup import configure_devices
from experiments.study import summaries
from fedjax_collapse.config.folder import CHECKPOINTS, METRICS, SUMMARY
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.core.round_arrays import read_npz
from fedjax_collapse.run.checkpoint import Checkpoints

METHODS = ("feddecorr", "scaffold", "moon", "fedbn", "fedmr", "fedlesam", "fedcm", "fedexp", "fedrep", "ccvr")
_CONFIG = """
from experiments.configs import base


def get_config(arg=""):
    config = base.get_config()
    config.rounds, config.checkpoint_every, config.clients = 3, 1, 3
    config.seeds = {seeds}
    config.training.epochs, config.training.batch_size = 1, 256
    config.network = dict(name="small_cnn", channels=(2,))  # with BatchNorm
    config.engine.runs = "together"
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
        """What a start in the folder ``name`` has left: its ``log``, ``operations`` in lines, or ``digests``."""
        return self.folder / f"{name}-{kind}"

    def write_config(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "config.py").write_text(_CONFIG.format(seeds=self.seeds))

    def command(self, name: str) -> list[str]:
        """The launcher's arguments, for the folder ``name``."""
        of_method = f"--compare={self.method}", f"--arm={self.method}"
        return [f"--config={self.folder / 'config.py'}", *of_method, f"--workdir={self.folder / name}"]


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options, is_same = _parse(arguments), True
    moments = random.Random(options.seed)
    print(f"{'study':32} kills late differ operations seconds", flush=True)
    for method, seeds in itertools.product(options.methods, ((0,), (0, 1))):
        case, start = Case(method, seeds, options.out), time.perf_counter()
        operations, kills, late, differing = try_case(case, options, moments)
        is_same = is_same and not differing
        counts = f"{kills:5} {late:4} {len(differing):6} {operations:10}"
        print(f"{case!s:32} {counts} {time.perf_counter() - start:7.0f}", flush=True)
        for line in differing:
            print(f"  {line}", flush=True)
    return 0 if is_same else 1


def try_case(case: Case, options: argparse.Namespace, moments: random.Random) -> tuple[int, int, int, list[str]]:
    """Kills the study as often as the options say, and starts it again each time.

    Returns how many operations it has, kills, kills that came too late, and what differs after which kill.
    """
    case.write_config()
    if _start(case, "whole"):
        raise RuntimeError(f"the study itself fails: see {case.file('whole', 'log')}")
    began = time.perf_counter()
    if differences := _compare(case, _start(case, "killed")):
        raise RuntimeError(f"the study itself does not leave the same twice: {differences}")
    seconds = time.perf_counter() - began
    operations = case.file("whole", "operations").read_text().splitlines()
    points = moments.sample(range(len(operations)), min(options.points or len(operations), len(operations)))
    kills = [(f"before {n}, {operations[n]}", n, None) for n in sorted(points)]
    kills += [(f"after {s:.2f} s", None, s) for s in (seconds * moments.random() for _ in range(options.random))]
    differing, num_late = [], 0
    for what, number, moment in kills:
        shutil.rmtree(case.folder / "killed")
        num_late += _start(case, "killed", number, moment) != _KILLED
        if differences := _compare(case, _start(case, "killed")):
            differing.append(f"{what}: {differences}")
            shutil.copytree(case.folder / "killed", case.folder / f"differs{len(differing)}")
    return len(operations), len(kills), num_late, differing


def _compare(case, status):
    """How a study that was killed and has ended with a status differs from the whole one; empty if it does not."""
    if status:
        return f"the second start ended with {status}: {case.file('killed', 'log').read_text()[-300:]}"
    expected, found = (json.loads(case.file(name, "digests").read_text()) for name in ("whole", "killed"))
    return ", ".join(sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)))


def digests(folder: Path) -> dict[str, str]:
    """What of a study has to be equal, by name: hashes of files and of arrays."""
    found = {SUMMARY: (folder / SUMMARY).read_text()}
    for run in folder.glob("*/seed*"):
        name = run.relative_to(folder).as_posix()
        found[f"{name} {METRICS}"] = (run / METRICS).read_text()
        for path in run.glob("*.npz"):
            found |= {f"{name} {path.name} {array}": digest(values) for array, values in read_npz(path).items()}
        last = max(Checkpoints(run / CHECKPOINTS).rounds)
        state = jax.tree.leaves_with_path(ocp.load(run / CHECKPOINTS / str(last)))
        for place, leaf in state:
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            numbers = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
            found[f"{name} round {last} {jax.tree_util.keystr(place)}"] = digest(numbers)
    return found


def _start(case, name, kill_at: int | None = None, kill_after: float | None = None) -> int:
    """Starts the study in the folder of that name in a process of its own, and kills it before an operation or after
    some seconds; returns its exit status, of a killed one negative."""
    child = os.fork()  # before JAX has started anything: what it imports is there, and it starts its own backend
    if child == 0:
        try:
            configure_devices()
            os._exit(_launch(case, name, kill_at))
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _launch(case, name, kill_at):
    """The launcher, as a process of its own would run it; then what it left is written down."""
    log = os.open(case.file(name, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    workdir = case.folder / name
    shutil._use_fd_functions = False  # it names what it removes by whole paths then
    sys.addaudithook(_hook(workdir, case.file(name, "operations").open("w"), kill_at))
    summaries.write_report = lambda study: study  # it takes longer than all else
    try:
        status = launch.main([*case.command(name), f"--compilation_cache={case.out / 'compiled'}"])
        if status == 0:
            case.file(name, "digests").write_text(json.dumps(digests(workdir)))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _hook(workdir, written, kill_at):
    """Writes a line for every operation on files below the folder, and kills the process before the one of that
    number. Other threads' operations wait meanwhile."""
    numbers, below, lock = itertools.count(), f"{workdir}{os.sep}", threading.Lock()
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")

    def hook(event, arguments):
        is_opened = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not (is_opened or event in changes) or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(below):
            with lock:
                if next(numbers) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                print(event, path.removeprefix(below), file=written, flush=True)

    return hook


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
    options.out = (options.out or Path(tempfile.mkdtemp(prefix="kills-"))).absolute()
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
