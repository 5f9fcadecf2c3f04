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

Rounds = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # rows of metrics and of timing
Take = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], None]
_SECONDS = "30"  # timeout of Weights & Biases when a run begins and when it ends
_OFFLINE = ("offline", "dryrun", "disabled")


class Described(NamedTuple):
    """A run, as a sink shows it."""

    name: str
    study: str
    folder: Path
    config: Mapping[str, Any]


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
        guarded = [[_Guarded(sink, self._described(*run), self.announce) for sink in names] for run in runs.items()]

        def take(rows, timings):
            for sinks, *of_round in zip(guarded, rows, timings, strict=True):
                for sink in sinks:
                    sink.add(*of_round)

        is_failed = True
        try:
            yield take
            is_failed = False
        finally:
            for sink in (sink for sinks in guarded for sink in sinks):
                sink.close(is_failed)

    def _described(self, name, folder):
        (cell, seed), config = name, self.configs[name[0]]
        return Described(f"{cell} seed {seed}", self.workdir.name, folder, {**config, "cell": cell, "seed": seed})


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
        WeightsAndBiases.is_offline = True
        kept = "runs are kept in their folders, from where wandb sync sends them"
        print(f"warning: Weights & Biases do not answer ({one_line(error)}); {kept}", file=sys.stderr)
        return
    if not is_known:
        raise UserError("--log=wandb: no account is configured; wandb login, or WANDB_MODE=offline to send runs later")


class TensorBoard:
    """An event file in ``tensorboard`` in the run's folder, which replaces that of an earlier start."""

    def __init__(self, run: Described, earlier: Rounds) -> None:
        from tensorboard.summary import Writer

        folder = run.folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = Writer(str(folder))
        ago = sum(_seconds(timing) for _, timing in earlier)
        for row, timing in earlier:
            ago -= _seconds(timing)
            self._add(row, timing, time.time() - ago)

    def add(self, row: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        self._add(row, timing, time.time())
        self._writer.flush()

    def close(self, is_failed: bool) -> None:
        del is_failed
        self._writer.close()

    def _add(self, row, timing, when):
        for name, value in _numbers(row, timing).items():
            self._writer.add_scalar(name, value, row["round"], wall_time=when)


class WeightsAndBiases:
    """A run of Weights & Biases, the same one at each start."""

    is_offline = False  # True for the rest of this process after a timeout

    def __init__(self, run: Described, earlier: Rounds) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline" if WeightsAndBiases.is_offline else "online")
        about = dict(project=os.environ.get("WANDB_PROJECT", "fedjax_collapse"), group=run.study, name=run.name)
        about |= dict(id=_identity(run.folder), resume=None if mode in _OFFLINE else "allow", config=dict(run.config))
        settings = wandb.Settings(console="off", silent=True, reinit="create_new")
        try:
            self._run = wandb.init(**about, mode=mode, dir=run.folder, settings=settings)
        except Exception:
            WeightsAndBiases.is_offline = True
            raise
        self._first = self._run.step  # the first round that is missing there
        for row, timing in earlier:
            self.add(row, timing)

    def add(self, row: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        if row["round"] >= self._first:
            self._run.log(_numbers(row, timing), step=row["round"])

    def close(self, is_failed: bool) -> None:
        self._run.finish(exit_code=int(is_failed))


_SINKS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
_NEEDED = {"tensorboard": "tensorboard.summary", "wandb": "wandb.sdk"}


class _Guarded:
    """A sink of one run, opened with the first row; after an error it gets no more rows."""

    def __init__(self, name: str, run: Described, announce: Callable[[str], None]) -> None:
        self._name, self._run, self._announce = name, run, announce
        self._sink: TensorBoard | WeightsAndBiases | None = None
        self._is_broken = False

    def add(self, row: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        self._try(self._add, row, timing)

    def close(self, is_failed: bool) -> None:
        if self._sink is not None:
            self._try(self._sink.close, is_failed)

    def _add(self, row, timing):
        if self._sink is None:
            self._sink = _SINKS[self._name](self._run, _earlier(self._run.folder, row["round"]))
        self._sink.add(row, timing)

    def _try(self, do, *arguments):
        if self._is_broken:
            return
        try:
            do(*arguments)
        except Exception as error:
            self._is_broken = True
            self._announce(
                f"{self._run.name}: nothing more is sent to {self._name} ({one_line(error)}); the run continues"
            )


def _earlier(folder, round):
    """Returns the rows before a round, which is already in the files; without seconds if these are lost."""
    rows = Rows.read(folder / METRICS, round).rows[:-1]
    timings = {timing["round"]: timing for timing in Rows.salvage(folder / TIMING, range(1, round)).rows}
    return [(row, timings.get(row["round"], {})) for row in rows]


def _numbers(row, timing):
    """Returns the finite numbers of a round."""
    named = {**row, **{f"time/{name}": value for name, value in timing.items()}}
    values = {name: number(value) for name, value in named.items() if name not in ("round", "time/round")}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _seconds(timing):
    """Returns the sum of the seconds in a row of timing."""
    values = (number(timing.get(phase)) for phase in PHASES)
    return sum(value for value in values if math.isfinite(value))


def _identity(folder):
    """Returns the identifier of the run at Weights & Biases, the same at each start."""
    path = folder / "wandb_id"
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:16], encoding="utf-8")
    return path.read_text(encoding="utf-8")
