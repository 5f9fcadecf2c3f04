"""Kills the processes of a study with workers, and compares every bit with a study that was not killed.

    python tests/campaigns/kill_workers.py [--kills=60] [--workers=2] [--seed=0] [--out=FOLDER]

The launcher starts the study with workers. At random moments one of its processes, a worker or their parent, gets
SIGKILL; whenever the parent has ended, the same command starts again, until the study is complete. Then its files are
compared as in ``kill_campaign.py``, and the next study begins. Exit status: 0, or 1 if something differs.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.startup import configure_devices
from tests.campaigns.kill_campaign import Case, digests

_LAUNCHER = Path(__file__).resolve().parents[2] / "experiments/launch.py"
_CHANGES = ("--config.rounds=40", "--config.checkpoint_every=2", "--config.engine.runs=separate")


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = _parse(arguments)
    configure_devices()  # a worker alone has several, on which its checkpoints were
    moments, killed, differing, studies = random.Random(options.seed), collections.Counter(), 0, 0
    case = Case("scaffold", tuple(range(6)), options.out)
    case.write_config()
    began = time.perf_counter()
    if status := _start(case, "whole", options).wait():
        print(f"the study itself ended with {status}: see {case.file('whole', 'log')}")
        return 1
    seconds, expected, folder = time.perf_counter() - began, digests(case.folder / "whole"), case.folder / "killed"
    while killed.total() < options.kills:
        status = starts = 1
        process = _start(case, "killed", options)
        while status:
            allowed = options.kills > killed.total()
            try:
                status = process.wait(moments.uniform(0, seconds / 2) if allowed else None)
            except subprocess.TimeoutExpired:
                children = _children(process.pid)
                victim = moments.choice([process.pid, *children, *children])
                os.kill(victim, signal.SIGKILL)
                killed["parent" if victim == process.pid else "worker"] += 1
                continue
            if status:
                process, starts = _start(case, "killed", options), starts + 1
        found = digests(folder)
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        differing, studies = differing + bool(names), studies + 1
        kills = f"{killed['worker']} workers and {killed['parent']} parents killed"
        print(f"study {studies}: {kills}, {starts} starts, differing: {', '.join(names) or 'nothing'}", flush=True)
        shutil.move(folder, case.folder / f"differs{studies}") if names else shutil.rmtree(folder)
    return 1 if differing else 0


def _start(case, name, options):
    command = [sys.executable, _LAUNCHER, *case.command(name), *_CHANGES, f"--workers={options.workers}"]
    with case.file(name, "log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _children(process):
    """The processes that a process has started, by Linux's files."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--out", type=Path, default=None, help="folder to work in, default a temporary one")
    options = parser.parse_args(arguments)
    options.out = (options.out or Path(tempfile.mkdtemp(prefix="kills-"))).absolute()
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
