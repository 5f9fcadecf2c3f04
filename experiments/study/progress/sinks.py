"""Sends the rows of runs to TensorBoard or Weights & Biases while they are trained.

The results are ``metrics.jsonl`` and ``timing.jsonl``. At each start a sink is given all of their rows again, so that
it has every round once, regardless of interruptions, and may be added later. An error of a sink is reported once, and
the run continues without it.
"""

import contextlib
import importlib
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_collapse.config.cells import RunName
from fedjax_collapse.config.folder import METRICS, TIMING
from fedjax_collapse.core import processes
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import Rows
from fedjax_collapse.results.metrics import PHASES, number
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.user_code import one_line

Row = Mapping[str, Any]
Take = Callable[[Sequence[Row], Sequence[Row]], None]
_SECONDS = "30"  # timeout of Weights & Biases when a run begins and when it ends
_OFFLINE = ("offline", "dryrun", "disabled")


class Sinks(NamedTuple):
    """The sinks of a study, with its folder, the configs of its cells, and a function that prints a line."""

    names: Sequence[str] = ()
    workdir: Path = Path()
    configs: Mapping[str, Any] = {}
    announce: Callable[[str], None] = print

    @contextlib.contextmanager
    def of(self, runs: Mapping[RunName, Path]) -> Iterator[Take]:
        """Yields a function that takes the rows of metrics and timing of batched runs, given the folder of each."""
        names = self.names if processes.is_first() else ()
        with contextlib.ExitStack() as opened:
            sinks = [[opened.push(self._sink(name, *run)) for name in names] for run in runs.items()]

            def take(rows, timings):
                for own, *of_round in zip(sinks, rows, timings, strict=True):
                    for sink in own:
                        sink.add(*of_round)

            yield take

    def _sink(self, name, run, folder):
        (cell, seed), config = run, self.configs[run[0]]
        about = dict(name=f"{cell} seed {seed}", group=self.workdir.name, config={**config, "cell": cell, "seed": seed})
        return _Sink(name, folder, about, self.announce)


def check_sinks(names: Iterable[str]) -> None:
    """Raises UserError for a sink that is unknown, whose package is missing, or that has no account.

    Weights & Biases ask for the account on a terminal; if they do not answer, a warning is printed.
    """
    for variable in ("WANDB_INIT_TIMEOUT", "WANDB_FINISH_TIMEOUT"):  # before the package reads them
        os.environ.setdefault(variable, _SECONDS)
    for name in names:
        check_name("sink of --log:", name, _SINKS)
        try:
            importlib.import_module(_NEEDED[name])
        except ImportError as error:
            raise UserError(f'--log={name} needs a package: pip install "fedjax_collapse[{name}]" ({error})') from None
        if name == "wandb" and os.environ.get("WANDB_MODE") not in _OFFLINE:
            _log_in()


def _log_in():
    import wandb

    try:
        is_known = wandb.login(verify=True)
    except wandb.errors.UsageError:  # no terminal to ask for an account
        is_known = False
    except Exception as error:
        WeightsAndBiases.is_offline = is_known = True
        kept = "runs are kept in their folders, from where wandb sync sends them"
        print(f"warning: Weights & Biases do not answer ({one_line(error)}); {kept}", file=sys.stderr)
    if not is_known:
        raise UserError("--log=wandb: no account is configured; wandb login, or WANDB_MODE=offline to send runs later")


class TensorBoard:
    """An event file in ``tensorboard`` in the run's folder, which replaces that of an earlier start."""

    def __init__(self, folder: Path, _about: Mapping[str, Any]) -> None:
        from tensorboard.summary import Writer

        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._writer = Writer(str(folder / "tensorboard"))

    def add(self, round: int, numbers: Mapping[str, float], when: float) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round, wall_time=when)
        self._writer.flush()

    def close(self, _is_failed: bool) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, the same one at each start."""

    is_offline = False  # True for the rest of this process after a timeout

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import wandb

        identity = folder / "wandb_id"
        if not identity.exists():
            identity.write_text(uuid.uuid4().hex[:16], encoding="utf-8")
        mode = os.environ.get("WANDB_MODE", "offline" if WeightsAndBiases.is_offline else "online")
        options = dict(id=identity.read_text(encoding="utf-8"), resume=None if mode in _OFFLINE else "allow")
        options |= dict(project=os.environ.get("WANDB_PROJECT", "fedjax_collapse"), mode=mode, dir=folder)
        settings = wandb.Settings(console="off", silent=True, reinit="create_new")
        try:
            self._run = wandb.init(**about, **options, settings=settings)
        except Exception:
            WeightsAndBiases.is_offline = True
            raise
        self._first = self._run.step  # the first round that is missing there

    def add(self, round: int, numbers: Mapping[str, float], _when: float) -> None:
        if round >= self._first:
            self._run.log(numbers, step=round)

    def close(self, is_failed: bool) -> None:
        self._run.finish(exit_code=int(is_failed))


_SINKS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
_NEEDED = {"tensorboard": "tensorboard.summary", "wandb": "wandb.sdk"}


class _Sink:
    """A sink of one run, opened with the first row; after an error it gets no more rows."""

    def __init__(self, name: str, folder: Path, about: Mapping[str, Any], announce: Callable[[str], None]) -> None:
        self._name, self._folder, self._about, self._announce = name, folder, about, announce
        self._opened: TensorBoard | WeightsAndBiases | None = None
        self._is_broken = False

    def __exit__(self, failure: object, *_details: object) -> None:
        if self._opened is not None:
            self._try(self._opened.close, failure is not None)

    def add(self, row: Row, timing: Row) -> None:
        self._try(self._add, row, timing)

    def _add(self, row, timing):
        rounds = [(row, timing)]
        if self._opened is None:
            self._opened = _SINKS[self._name](self._folder, self._about)
            earlier = Rows.read(self._folder / METRICS, row["round"]).rows[:-1]  # of this round, the files have it too
            times = {of["round"]: of for of in Rows.salvage(self._folder / TIMING, range(1, row["round"])).rows}
            rounds = [*((of, times.get(of["round"], {})) for of in earlier), *rounds]
        when = time.time() - sum(_seconds(of_round) for _, of_round in rounds)
        for of_metrics, of_timing in rounds:
            when += _seconds(of_timing)
            self._opened.add(of_metrics["round"], _numbers(of_metrics, of_timing), when)

    def _try(self, do, *arguments):
        if self._is_broken:
            return
        try:
            do(*arguments)
        except Exception as error:
            self._is_broken = True
            what = f"nothing more is sent to {self._name} ({one_line(error)}); the run continues"
            self._announce(f"{self._about['name']}: {what}")


def _numbers(row, timing):
    """Returns the finite numbers of a round."""
    named = {**row, **{f"time/{name}": value for name, value in timing.items()}}
    values = {name: number(value) for name, value in named.items() if name not in ("round", "time/round")}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _seconds(timing):
    """Returns the sum of the seconds in a row of timing."""
    return sum(filter(math.isfinite, (number(timing.get(phase)) for phase in PHASES)))
