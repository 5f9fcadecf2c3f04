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

from tests.campaigns.kill_campaign import digests

_LAUNCHER = Path(__file__).resolve().parents[2] / "experiments/launch.py"
_CONFIG = """
from experiments.configs import base


def get_config(arg=""):
    config = base.get_config()
    config.rounds, config.checkpoint_every, config.clients = 40, 2, 3
    config.seeds = (0, 1, 2)
    config.training.epochs, config.training.batch_size = 1, 256
    config.network = dict(name="mlp", hidden=(6,))
    config.arms.feddecorr = dict(methods=dict(feddecorr=dict(strength=0.1)))
    config.arms.scaffold = dict(methods=dict(scaffold=dict()))
    return config
"""


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = _parse(arguments)
    moments, killed, differing, studies = random.Random(options.seed), collections.Counter(), 0, 0
    (options.out / "config.py").write_text(_CONFIG)
    began = time.perf_counter()
    while (process := _start(options, "whole")).wait():
        print(f"the study itself ended with {process.returncode}: see {options.out / 'whole.log'}")
        return 1
    seconds = time.perf_counter() - began
    expected = digests(options.out / "whole")
    while killed.total() < options.kills:
        process, starts = _start(options, "killed"), 1
        while True:
            allowed = options.kills > killed.total()
            try:
                status = process.wait(moments.uniform(0, seconds / 2) if allowed else None)
            except subprocess.TimeoutExpired:
                children = _children(process.pid)
                victim = moments.choice([process.pid, *children, *children])
                os.kill(victim, signal.SIGKILL)
                killed["parent" if victim == process.pid else "worker"] += 1
                continue
            if status == 0:
                break
            process, starts = _start(options, "killed"), starts + 1
        found = digests(options.out / "killed")
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        differing, studies = differing + bool(names), studies + 1
        kills = f"{killed['worker']} workers and {killed['parent']} parents killed"
        print(f"study {studies}: {kills}, {starts} starts, differing: {', '.join(names) or 'nothing'}", flush=True)
        shutil.move(options.out / "killed", options.out / f"differs{studies}") if names else None
        shutil.rmtree(options.out / "killed", ignore_errors=True)
    return 1 if differing else 0


def _start(options, name):
    command = [sys.executable, _LAUNCHER, f"--config={options.out / 'config.py'}", f"--workdir={options.out / name}"]
    with (options.out / f"{name}.log").open("a") as log:
        return subprocess.Popen([*command, f"--workers={options.workers}"], stdout=log, stderr=log)


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
