"""The folders of runs: the start of a run, at its last whole checkpoint or from round 0, and its files."""

import contextlib
import errno
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from fedjax_collapse.core import masks, processes
from fedjax_collapse.core.records import ClientState, Damaged, UserError, Variables
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.engine import State, memory
from fedjax_collapse.engine.client_states import StoredStates, check_space
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run import divergence
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.divergence import Divergence
from fedjax_collapse.run.fingerprint import claim, name_in
from fedjax_collapse.run.history import History
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.runs import Run, Schedule, description

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)  # errors that do not depend on the folder's name
_LOGGED = 3  # the most intervals between checkpoints whose changes of client states in files are logged
_PRIVACY = "privacy.json"  # epsilon, and what it does not cover


@processes.in_first_process
def rounds_kept(folder: Path | str) -> tuple[int, ...]:
    """Returns the rounds of the folder's checkpoints, from which ``simulate`` could continue; 0 if there is none."""
    return Checkpoints(Path(folder) / "checkpoints").rounds or (0,)


def common_round(kept: Iterable[Sequence[int]]) -> int:
    """Returns the last round for which all runs have a checkpoint; 0 if there is none."""
    return max(_common(kept), default=0)


@processes.in_first_process
def stored_name(run: Run) -> str:
    """Returns the name that the run's folder has stored, else the run's own, else that of the folder; perhaps empty."""
    folder = run.folder and Path(run.folder).absolute()
    return (folder and name_in(folder)) or run.name or (folder.name if folder else "")


class Folders:
    """The folders of batched runs; without a folder, a run starts from round 0 and saves nothing.

    Only the first of several processes reads and writes them. All call the same methods, and get what it has read.

    Args:
        runs: the runs.
        model: their model.
        schedule: of all runs.
    """

    def __init__(self, runs: Sequence[Run], model: Model, schedule: Schedule):
        self._runs, self._schedule = runs, schedule
        self._describe = functools.partial(description, model=model, schedule=schedule)
        self._checkpoints: list[Checkpoints | None] = [None for _ in runs]
        self.histories = [History() for _ in runs]  # in the other processes without a folder
        self.spent: list[dict[str, float]] = [{} for _ in runs]  # by run, epsilon by the name of its metric
        self.client_states: StoredStates | None = None  # of a federation on disk whose run has a folder

    def open(self, states: Sequence[State]) -> list[State]:
        """Returns the states from which the runs continue: of the last whole checkpoint of all, or the given ones.

        Warns of damaged checkpoints. Client states that are in files are left out, and opened as ``client_states``.

        Raises:
            UserError: a folder cannot be made or belongs to another run, no checkpoint is whole, or the disk has no
                room for the states of clients.
        """
        processes.check_alike(lambda: {"run": list(map(self._describe, self._runs))})
        run, (first, *_) = self._runs[0], states
        is_in_files = run.federation.store is not None and run.folder is not None and jax.tree.leaves(first.clients)
        of_client = jax.tree.map(lambda leaf: np.array(leaf[0]), first.clients) if is_in_files else None
        if is_in_files:
            states = [first._replace(clients=ClientState({}, {}))]

        opened, self.spent, needed = self._open(states, of_client)
        for history, (rows, unevaluated) in () if processes.is_first() else zip(self.histories, needed, strict=True):
            history.rows.extend(rows)
            if unevaluated:
                history.add_rounds(unevaluated)
        if is_in_files:
            place, done, noted = Path(run.folder) / "states", int(opened[0].round), self.histories[0].client_states
            self.client_states = StoredStates(place, of_client, run.federation.num_clients, done, noted)
        return opened

    @processes.in_first_process
    def _open(self, states, of_client):
        """Returns the states, by run what is spent, and what other processes need of the histories."""
        paths = [None if run.folder is None else Path(run.folder) for run in self._runs]
        for path in filter(None, paths):
            make_folder(path)
        if of_client is not None:
            count, of = self._runs[0].federation.num_clients, self._schedule
            logged = _LOGGED * max(of.checkpoint_every, of.evaluate_every)
            check_space(paths[0], of_client, count, of.rule.cohort_size(count), of.rounds, logged)
        self._checkpoints = [path and Checkpoints(path / "checkpoints") for path in paths]
        places = list(zip(self._runs, paths, self._checkpoints, strict=True))
        self.spent, statements = map(list, zip(*(self._privacy(run, path) for run, path, _ in places), strict=True))
        claim({path: (self._describe(run), bool(of.rounds)) for run, path, of in places if path})
        for path, says in zip(paths, statements, strict=True):
            if path and says:
                write_json(path / _PRIVACY, says)
        done, states, self.histories = self._newest_whole(paths, states)
        for checkpoints in filter(None, self._checkpoints):
            checkpoints.forget_after(done)
        for history in self.histories:
            history.cut()
        return states, self.spent, [(history.rows[-1:], history.unevaluated) for history in self.histories]

    def _privacy(self, run, path):
        """Returns the epsilon of a run, by the name of its metric, and what its folder says of its privacy, if any."""
        of, rounds = self._schedule, self._schedule.rounds
        if path:  # rounds whose results are in the folder count, whether or not the run can continue from there
            rounds = max(rounds, *rounds_kept(path), History.last_round(path))
        return guarantee.statement(of.privacy, run.algorithm, of.rule, rounds, run.federation.num_clients)

    def _newest_whole(self, paths, states):
        """Returns round, states and histories from which the runs continue; warns of damage, and changes nothing."""
        damages = []
        for round in sorted(_common(of.rounds if of else () for of in self._checkpoints), reverse=True):
            try:
                loaded = [of.load(round, state) for of, state in zip(self._checkpoints, states, strict=True)]
                histories = [
                    History.read(path, round, notes, self._schedule.measure_every)
                    for path, (_, notes) in zip(paths, loaded, strict=True)
                ]
            except Damaged as error:
                damages.append(str(error))
                continue
            for damage in damages:
                warnings.warn(f"{damage}; the run continues from round {round}, to the same results", stacklevel=2)
            return round, [state for state, _ in loaded], histories
        if damages:
            names = ", ".join(map(str, paths))
            raise UserError(
                f"{'; '.join(damages)}; no checkpoint is whole: restore it, or remove {names} to start again"
            )
        return 0, list(states), [History.read(path, 0) if path else History() for path in paths]

    @processes.in_first_process
    def divergences(self, done: int) -> dict[int, Divergence]:
        """Returns, by run, the divergences in the rounds done that earlier starts have stored."""
        found = [history.folder and divergence.remembered(history.folder, done) for history in self.histories]
        return {i: diverged for i, diverged in enumerate(found) if diverged}

    def state_before(self, i: int, round: int, initial: State) -> State:
        """Returns a run's state at its last checkpoint before a round, else the initial one; in the first process."""
        kept = [done for done in self._checkpoints[i].rounds if done < round] if self._checkpoints[i] else ()
        return self._checkpoints[i].load(kept[-1], initial)[0] if kept else initial

    def save(self, done: int, states_of: Callable[[], Sequence[State]]) -> None:
        """Saves the states of every run that has a folder, which ``states_of`` returns.

        Waits for the disk if other processes wait, or memory has no room for a copy of the states.
        """
        if any(run.folder for run in self._runs):
            states = states_of()
            fits = memory.fits_on_host([state.clients for state in states])
            self._save(done, states, must_wait=processes.is_multiprocess() or not fits)

    @processes.in_first_process
    def _save(self, done, states, must_wait):
        for history, checkpoints, state in zip(self.histories, self._checkpoints, states, strict=True):
            if checkpoints:
                before = [history.to_save()]
                if (stored := self.client_states) is not None:
                    oldest = min(checkpoints.rounds, default=0)
                    history.client_states = stored.digest
                    before += [stored.flush, functools.partial(stored.forget_before, oldest)]
                checkpoints.save(done, state, history.written(), before, must_wait)

    def finish(self, i: int, variables: Variables) -> None:
        """Writes the results of a run that has ended, if it has a folder."""
        if (folder := self.histories[i].folder) is not None:
            self.histories[i].finish()
            write_npz(folder / "final.npz", jax.device_get(masks.by_path(variables._asdict())))

    @contextlib.contextmanager
    def written_at_last(self) -> Iterator[None]:
        """Waits for all saves at the end of its body; an error of the body takes precedence over theirs."""
        failed = []
        try:
            yield
        finally:
            for checkpoints in filter(None, self._checkpoints):
                try:
                    checkpoints.wait()
                except Exception as error:
                    failed.append(error)
        for error in failed[:1]:
            raise error


def make_folder(folder: Path) -> None:
    """Creates the folder of a run.

    Raises:
        UserError: if its name or place is the reason that it cannot be created.
        OSError: if the disk is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _OF_THE_DISK:
            raise
        raise UserError(f"folder {folder}: cannot be made ({' '.join(str(error).split())}); choose another") from error


def _common(kept):
    return set.intersection(*map(set, kept))
