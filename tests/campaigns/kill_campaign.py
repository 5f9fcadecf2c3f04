"""Kills small studies, starts them again, and compares every bit that they leave with studies that were not killed.

    python tests/campaigns/kill_campaign.py [--methods=feddecorr,scaffold] [--points=N] [--random=N] [--every]

The signal is SIGKILL. Forced points are Python's file operations below the study's folder (opening for writing,
renaming, removing, making a folder), each of which is one; the process ends just before it. ``--every`` tries what a
kill before each of them would leave, without as many kills: the folder is copied while the threads of one study wait.
Every method is killed alone and with two seeds that are trained together. What is compared: metrics, arrays, final
variables, and the states of server and clients in the last checkpoint. Exit status: 0, or 1 if something differs.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
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

METHODS = {
    "feddecorr": "dict(methods=dict(feddecorr=dict(strength=0.1)))",
    "scaffold": "dict(methods=dict(scaffold=dict()))",
    "moon": "dict(methods=dict(moon=dict(strength=1.0)))",
    "fedbn": "dict(server=dict(batch_norm='local'), network=dict(name='small_cnn', channels=(2,)))",
    "fedmr": "dict(methods=dict(fedmr=dict(inter=0.1)))",
    "fedlesam": "dict(methods=dict(fedlesam=dict(rho=0.1)))",
    "fedcm": "dict(methods=dict(fedcm=dict(alpha=0.5)))",
    "fedexp": "dict(methods=dict(fedexp=dict()))",
    "fedrep": "dict(methods=dict(fedrep=dict(head_epochs=1, body_epochs=1)))",
    "ccvr": "dict(methods=dict(ccvr=dict(samples=20, epochs=2)))",
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


class Tried(NamedTuple):
    """What came of it."""

    operations: int  # of the study that is not killed
    differing: list[str]  # what differs after which kill
    late: int  # kills that came too late
    kills: int
    copies: int  # different folders that a kill before some operation would leave


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
        """What a start in the folder ``name`` has left: ``operations``, a line for each, or ``digests``."""
        return self.folder / f"{name}-{kind}"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def copies(self) -> Path:
        """Of the folder ``whole``, by the number of the operation that came next."""
        return self.folder / "copies"

    def copy(self, number: int, operation: str) -> None:
        """Makes one before an operation, which it writes down."""
        shutil.copytree(self.folder / "whole", self.copies / str(number), copy_function=_copy)
        with self.file("whole", "operations").open("a") as file:
            file.write(f"{operation}\n")

    def write_config(self) -> None:
        self.folder.mkdir(parents=True)
        text = _CONFIG.format(seeds=self.seeds, method=self.method, changes=METHODS[self.method])
        (self.folder / "config.py").write_text(text)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = _parse(arguments)
    moments = random.Random(options.seed)
    is_same = True
    print(f"{'study':32} kills late copies differ operations seconds", flush=True)
    for method, seeds in itertools.product(options.methods, ((0,), (0, 1))):
        case, start = Case(method, seeds, options.out), time.perf_counter()
        tried = try_case(case, options, moments)
        is_same = is_same and not tried.differing
        counts = f"{tried.kills:5} {tried.late:4} {tried.copies:6} {len(tried.differing):6} {tried.operations:10}"
        print(f"{case!s:32} {counts} {time.perf_counter() - start:7.0f}", flush=True)
        for line in tried.differing:
            print(f"  {line}", flush=True)
    return 0 if is_same else 1


def try_case(case: Case, options: argparse.Namespace, moments: random.Random) -> Tried:
    """Kills the study as often as the options say, and starts it again each time."""
    case.write_config()
    with _one_process(case) as start:
        seconds = _seconds_of_whole(case, start)
        operations = case.file("whole", "operations").read_text().splitlines()
        points = moments.sample(range(len(operations)), min(options.points or len(operations), len(operations)))
        kills = [(f"before {n}, {operations[n]}", n, None) for n in sorted(points)]
        kills += [(f"after {s:.2f} s", None, s) for s in (seconds * moments.random() for _ in range(options.random))]
        differing, num_late = [], 0

        def go_on(what):
            if differences := _compare(case, start("killed")):
                differing.append(f"{what}: {differences}")
                shutil.copytree(case.folder / "killed", case.folder / f"differs{len(differing)}")
            shutil.rmtree(case.folder / "killed")

        for what, number, moment in kills:
            num_late += _run(case, number, moment) != _KILLED
            go_on(what)
        copies = _different(case.copies) if options.every else ()
        for copy in copies:
            copy.rename(case.folder / "killed")
            go_on(f"copied before {copy.name}, {operations[int(copy.name)]}")
        shutil.rmtree(case.copies)
    return Tried(len(operations), differing, num_late, len(kills), len(copies))


def _different(copies):
    """In the order of operations; some of which change nothing."""
    by_content = {}
    for copy in sorted(copies.iterdir(), key=lambda path: int(path.name)):
        found = [(str(p.relative_to(copy)), p.read_bytes() if p.is_file() else None) for p in sorted(copy.rglob("*"))]
        by_content.setdefault(hashlib.sha256(repr(found).encode()).digest(), copy)
    return list(by_content.values())


def _seconds_of_whole(case, start):
    """Of the study that is not killed, in a process of its own; three of them leave the same."""
    if start("whole"):
        raise RuntimeError(f"the study itself fails: see {case.log('whole')}")
    began = time.perf_counter()
    own = _run(case, None, None)
    seconds = time.perf_counter() - began
    for again in (lambda: own, lambda: start("killed")):
        if differences := _compare(case, again()):
            raise RuntimeError(f"the study itself does not leave the same twice: {differences}")
        shutil.rmtree(case.folder / "killed")
    return seconds


def _compare(case, status):
    """How a study that was killed and has ended with a status differs from the whole one; empty if it does not."""
    if status:
        return f"the second start ended with {status}: {case.log('killed').read_text()[-300:]}"
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
        found |= {f"{name} round {last} {jax.tree_util.keystr(p)}": digest(_as_numbers(leaf)) for p, leaf in state}
    return found


def _copy(source, target):
    """What Orbax writes may be gone before it is copied."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


def _as_numbers(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


@contextlib.contextmanager
def _one_process(case) -> Iterator[Callable[[str], int]]:
    """What starts the study in the folder of that name and returns its exit status, in one process for all starts:
    only the first traces and compiles. The folder ``whole`` is copied before every operation on it."""
    here, there = multiprocessing.Pipe()
    child = os.fork()  # before JAX has started anything: what it imports is there, and it starts its own backend
    if child == 0:
        here.close()
        try:
            configure_devices()
            _watch(case.folder / "whole", case.copy)
            while name := there.recv():
                there.send(_start(case, name))
        finally:
            os._exit(0)
    there.close()

    def start(name):
        here.send(name)
        return here.recv()

    try:
        yield start
    finally:
        here.close()
        os.waitpid(child, 0)


def _run(case, kill_at: int | None, kill_after: float | None) -> int:
    """Starts the study in a process of its own, and kills it; its exit status, of a killed one negative."""
    child = os.fork()
    if child == 0:
        try:
            configure_devices()
            _watch(case.folder / "killed", lambda number, _: number == kill_at and os.kill(os.getpid(), signal.SIGKILL))
            os._exit(_start(case, "killed"))
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _start(case, name):
    """The launcher, as a process of its own would run it; then what it left is written down."""
    log = os.open(case.log(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    workdir = case.folder / name
    summaries.write_report = lambda study: study  # it takes longer than all else
    command = [f"--config={case.folder / 'config.py'}", f"--workdir={workdir}"]
    try:
        status = launch.main([*command, f"--compilation_cache={case.out / 'compiled'}"])
        if status == 0:
            case.file(name, "digests").write_text(json.dumps(digests(workdir)))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _watch(workdir, before):
    """``before`` is called with the number and the words of every operation on files below the folder from now on."""
    shutil._use_fd_functions = False  # it names what it removes by whole paths then
    sys.addaudithook(_hook(workdir, before))


def _hook(workdir, before):
    """Other threads' operations wait until ``before`` has returned."""
    numbers, below, lock = itertools.count(), f"{workdir}{os.sep}", threading.Lock()
    changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")

    def hook(event, arguments):
        is_opened = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if not (is_opened or event in changes) or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(below):
            with lock:
                before(next(numbers), f"{event} {path.removeprefix(below)}")

    return hook


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--points", type=int, default=12, metavar="N", help="forced points for each study; 0 is all")
    parser.add_argument("--random", type=int, default=2, metavar="N", help="kills at random moments for each study")
    parser.add_argument("--every", action="store_true", help="also what a kill before each operation would leave")
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
