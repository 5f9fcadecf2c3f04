"""Runs whose loss or model is no longer finite: detected at no cost, and traced back to a step.

The records of rounds, which are copied to the host anyway, identify round, clients and terms. The step and its inputs
are found by repeating the rounds since the last checkpoint and training these clients in the debug layout.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Examples, UserError, in_one_line, losses_of
from fedjax_collapse.core.round_arrays import read_npz, write_npz
from fedjax_collapse.engine import Assignment, RoundRecord, RoundSpec, State
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import within_process
from fedjax_collapse.engine.memory import is_exhaustion
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.training import local
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local import LocalContext, NotFinite

_OVERSHOOTS = 2  # learning rate times weight decay from which weight decay makes params larger
_FILE = "divergence.npz"  # in a run's folder


class Diverged(UserError):
    """Runs whose loss or model is no longer finite (``on_nan="stop"``).

    Args:
        found: the ``Divergence`` of each, by its index among the batched runs.
        results: of all batched runs.
    """

    def __init__(self, found: Mapping[int, "Divergence"], results: Sequence[Any]):
        super().__init__("; ".join(divergence.line for divergence in found.values()))
        self.found, self.results = dict(found), list(results)


class Suspicion(NamedTuple):
    """The first place of a non-finite value in the rounds' records."""

    round: int  # from 1
    clients: tuple[int, ...]  # whose loss is not finite; the whole cohort if only that of the server's model is not
    terms: tuple[str, ...]  # of the loss


class Divergence(NamedTuple):
    """A diverged run, as it is stored in the run's folder."""

    round: int  # from 1
    line: str
    arrays: dict[str, np.ndarray]  # client and step, the step's batch, the variables before it; empty if not found

    __repr__ = in_one_line


def find_nonfinite(record: RoundRecord, done: int, loss: float, score: str) -> Suspicion | None:
    """Returns the first non-finite value of the last rounds before ``done``; None if all are finite.

    Args:
        record: of these rounds.
        done: the number of rounds done.
        loss: of the server's model after these rounds.
        score: the name of the metric that is not a loss.
    """
    cohort = np.asarray(record.steps) > 0
    failed = {name: cohort & ~np.isfinite(values) for name, values in losses_of(record.metrics, score).items()}
    by_client = np.any(list(failed.values()), axis=0)
    if by_client.any():
        first = int(by_client.any(axis=1).argmax())
        terms = tuple(name for name, clients in failed.items() if clients[first].any())
        return Suspicion(done - len(cohort) + 1 + first, _identities(record, by_client, first), terms)
    return None if np.isfinite(loss) else Suspicion(done, _identities(record, cohort, -1), ())


def locate_nonfinite(
    spec: RoundSpec, run: tuple[FedAvg, State, Assignment], examples: Examples, storage: str, found: Suspicion
) -> NotFinite | None:
    """Returns the first non-finite step of the suspected clients, found in the debug layout.

    None if everything is finite when operations run one by one. Uses only devices of this process, so that it needs no
    other.

    Args:
        spec: the static description of the rounds.
        run: the run in some earlier round.
        examples: the examples.
        storage: as in ``engine.Program``.
        found: the suspected round and clients.
    """
    algorithm, state, assignment = run
    client_map = within_process(spec.layout.client_map)
    spec = dataclasses.replace(spec, layout=spec.layout._replace(client_map=client_map), run_map=None)
    missing = found.round - 1 - int(state.round)
    try:
        if missing or (algorithm.having("measure", "start") and found.round == 1):
            program = engine.Program(spec, [run], examples, storage)
            program.prepare()
            for left in range(missing, 0, -spec.layout.max_rounds):
                program.advance(min(left, spec.layout.max_rounds))
            (state,) = program.states()
        for client in found.clients:
            _train(_context(spec, algorithm, state, assignment, examples, client))
    except NotFinite as failure:
        return failure
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_exhaustion(error):
            raise
    return None


def explain(
    found: Suspicion, failure: NotFinite | None, training: LocalTraining, folder: Path | str | None, can_go_on: bool
) -> Divergence:
    """Returns the divergence with its message, and stores it in the folder if there is one.

    Args:
        found: the suspected round and clients.
        failure: the non-finite step, if it was found.
        training: local training, for the advice.
        folder: the run's folder.
        can_go_on: whether to mention ``on_nan``.
    """
    arrays, parts = {} if failure is None else _arrays(failure), [_where(found, failure)]
    path = None if folder is None else Path(folder) / _FILE
    if path and arrays:
        parts.append(f"what the step was given is in {path}")
    parts.append(_advice(found, failure, training))
    if can_go_on:
        parts.append("on_nan=continue continues" + (", on_nan=skip_client without such clients" if failure else ""))
    divergence = Divergence(found.round, "; ".join(parts), arrays)
    if path:
        write_npz(path, {"round": divergence.round, "line": divergence.line, **arrays})
    return divergence


def _advice(found, failure, training):
    if failure is not None and (found.round, failure.where[2]) == (1, 0) and failure.what.startswith("the term"):
        return "no step was taken before: look at the inputs and at the term"
    rate, decay = float(training.learning_rate_in(found.round - 1)), float(training.weight_decay)
    if training.optimizer is None and rate * decay >= _OVERSHOOTS and decay > rate:
        return f"lower training.weight_decay (now {decay:.3g}): a step takes {rate * decay:.3g} times the params away"
    clipping = "set" if training.clip_norm is None else "lower"
    return f"lower training.learning_rate (now {rate:.3g}) or {clipping} training.clip_norm"


def remembered(folder: Path | str, done: int) -> Divergence | None:
    """Returns the divergence that an earlier start stored; removes it if its round is not among those done.

    Raises:
        UserError: the file is damaged.
    """
    path = Path(folder) / _FILE
    stored = read_npz(path)
    if stored and int(stored["round"]) <= done:
        return Divergence(int(stored.pop("round")), str(stored.pop("line")), stored)
    path.unlink(missing_ok=True)
    return None


def _where(found, failure):
    """Describes round, client and step, and what is not finite there."""
    if failure is None and found.terms:
        clients = f"client {found.clients[0]}" + _more(found.clients)
        return f"round {found.round}, {clients}: {' and '.join(found.terms)} not finite"
    if failure is None:
        return f"round {found.round}: the loss of the server's model is not finite, what its clients sent is"
    _, client, step = failure.where
    others = _more(found.clients) if found.terms else ""
    step = "" if step is None else f", step {step}"
    return f"round {found.round}, client {client}{others}{step}: {failure.what} not finite"


def _more(clients):
    return f" (and {len(clients) - 1} more)" if len(clients) > 1 else ""


def _identities(record, flags, round):
    """Returns the identities of the clients that have a flag [rounds, entries] in a round."""
    flagged = np.flatnonzero(flags[round])
    return tuple(map(int, flagged if record.ids is None else record.ids[round][flagged]))


def _train(context):
    """Raises NotFinite if the client's training or its upload is not finite."""
    with jax.disable_jit():
        result = local.run(context)
    if not all_finite(result.upload):
        where = int(context.round), int(context.client.id), None
        raise NotFinite("what it sends is", where, result.trained.variables, None)


def _context(spec, algorithm, state, assignment, examples, id):
    """Returns the context of the client's next round, on one device, with its own examples only."""
    rows, device = np.asarray(assignment.ownership.rows[id]), spec.devices[0]
    inputs, labels = (array[rows] for array in examples[:2])
    examples = examples._replace(inputs=inputs, labels=labels, identities=rows)
    own = jax.tree.map(lambda leaf: leaf[id], state.clients)
    assignment = assignment._replace(ownership=assignment.ownership._replace(rows=()))
    placed = jax.device_put((algorithm, state._replace(clients=own), assignment, examples), device)
    algorithm, state, assignment, examples = placed
    layout = spec.layout._replace(client_map=engine.Loop((device,)))
    drawn = cohorts.draw(dataclasses.replace(spec, layout=layout), algorithm, assignment, state.key, state.round)
    (place,) = np.flatnonzero(np.asarray(drawn.id) == id)
    drawn = jax.tree.map(lambda leaf: leaf[place], drawn)
    client = drawn.with_data(jnp.arange(len(rows), dtype=rows.dtype), state.clients)
    return LocalContext(
        algorithm, spec.model, examples, state.server, state.round, client, batch_parts=layout.batch_parts
    )


def _arrays(failure):
    """Returns client and step, the step's batch and the variables before it, by path."""
    _, client, step = failure.where
    if step is None:
        return {}
    arrays = {"client": client, "step": step, **failure.batch._asdict(), **masks.by_path(failure.variables._asdict())}
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}
