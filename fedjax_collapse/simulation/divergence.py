"""Runs whose loss or model is not finite any more: noticed at no cost, and traced back to a step.

Numbers that come to the host anyway tell round, clients and terms. The step, and what it was given, is found by going
there again from the last checkpoint and training these clients in the debug layout.
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
from fedjax_collapse.core.records import Examples, UserError, losses_of
from fedjax_collapse.engine import Data, RoundRecord, Rounds, State
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.engine.client_maps import within_process
from fedjax_collapse.engine.memory import is_exhaustion
from fedjax_collapse.engine.skipping import all_finite
from fedjax_collapse.storage.round_arrays import read_npz, write_npz
from fedjax_collapse.training import local
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local import LocalContext, NotFinite
from fedjax_collapse.training.local_training import LocalTraining

_OVERSHOOTS = 2  # learning rate times weight decay from which a step alone makes params larger
_FILE = "divergence.npz"  # in a run's folder


class Diverged(UserError):
    """Runs whose loss or model is not finite any more (``on_nan="stop"``).

    ``found``: the ``Divergence`` of each, by its place among the runs that go together; ``results``: of all of these.
    """

    def __init__(self, found: Mapping[int, "Divergence"], results: Sequence[Any]):
        super().__init__("; ".join(divergence.line for divergence in found.values()))
        self.found, self.results = dict(found), list(results)


class Suspicion(NamedTuple):
    """Where something is not finite for the first time, as far as the rounds' records tell."""

    round: int  # from 1
    clients: tuple[int, ...]  # whose loss is not finite; the whole cohort where the server's model's alone is not
    terms: tuple[str, ...]  # of the loss


class Divergence(NamedTuple):
    """What is known of it in the end, and kept in the run's folder."""

    round: int  # from 1
    line: str
    arrays: dict[str, np.ndarray]  # client and step, the step's batch, the variables before it; empty if not found


def suspect(record: RoundRecord, done: int, loss: float, score: str) -> Suspicion | None:
    """What is not finite in the last rounds before ``done``; None if nothing is.

    ``loss``: of the server's model after them; ``score``: the metric that is no loss.
    """
    cohort = np.asarray(record.steps) > 0
    failed = {name: cohort & ~np.isfinite(values) for name, values in losses_of(record.metrics, score).items()}
    by_client = np.any(list(failed.values()), axis=0)
    if by_client.any():
        first = int(by_client.any(axis=1).argmax())
        terms = tuple(name for name, clients in failed.items() if clients[first].any())
        return Suspicion(done - len(cohort) + 1 + first, _positions(by_client[first]), terms)
    return None if np.isfinite(loss) else Suspicion(done, _positions(cohort[-1]), ())


def locate_nonfinite(
    rounds: Rounds, run: tuple[FedAvg, State, Data], examples: Examples, storage: str, found: Suspicion
) -> NotFinite | None:
    """What the suspected clients stumble over; None if they do not when their operations run one by one.

    ``run``: as it was in some round before. On the devices of this process, which need not ask others.
    """
    algorithm, state, data = run
    client_map = within_process(rounds.layout.client_map)
    rounds = dataclasses.replace(rounds, layout=rounds.layout._replace(client_map=client_map), run_map=None)
    missing = found.round - 1 - int(state.round)
    try:
        if missing or (algorithm.starting and found.round == 1):
            program = engine.Program(rounds, [run], examples, storage)
            program.prepare()
            for left in range(missing, 0, -rounds.layout.max_rounds):
                program.advance(min(left, rounds.layout.max_rounds))
            (state,) = program.states()
        for client in found.clients:
            _train(_context(rounds, algorithm, state, data, examples, client))
    except NotFinite as failure:
        return failure
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_exhaustion(error):
            raise
    return None


def explain(
    found: Suspicion, failure: NotFinite | None, training: LocalTraining, folder: Path | str | None, can_go_on: bool
) -> Divergence:
    """What is told of it and kept, in the folder if there is one."""
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
    """What an earlier start has kept, of one of the rounds that are done; that of a later one is removed.

    Raises:
        UserError: the file is damaged.
    """
    path = Path(folder) / _FILE
    kept = read_npz(path)
    if kept and int(kept["round"]) <= done:
        return Divergence(int(kept.pop("round")), str(kept.pop("line")), kept)
    path.unlink(missing_ok=True)
    return None


def _where(found, failure):
    """Round, client and step, and what is not finite there."""
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


def _positions(flags):
    return tuple(map(int, np.flatnonzero(flags)))


def _train(context):
    """Raises NotFinite if the client's training or what it sends is not finite."""
    with jax.disable_jit():
        result = local.run(context)
    if not all_finite(result.upload):
        where = int(context.round), int(context.client.id), None
        raise NotFinite("what it sends is", where, result.trained.variables, None)


def _context(rounds, algorithm, state, data, examples, id):
    """The client's next round, on one device, with its own examples alone."""
    rows, device = np.asarray(data.ownership.rows[id]), rounds.devices[0]
    inputs, labels = (array[rows] for array in examples[:2])
    examples = examples._replace(inputs=inputs, labels=labels, identities=rows)
    own = jax.tree.map(lambda leaf: leaf[id], state.clients)
    data = data._replace(ownership=data.ownership._replace(rows=()))
    placed = jax.device_put((algorithm, state._replace(clients=own), data, examples), device)
    algorithm, state, data, examples = placed
    layout = rounds.layout._replace(client_map=engine.Loop((device,)))
    drawn = cohorts.draw(dataclasses.replace(rounds, layout=layout), algorithm, data, state.key, state.round)
    (place,) = np.flatnonzero(np.asarray(drawn.id) == id)
    drawn = jax.tree.map(lambda leaf: leaf[place], drawn)
    client = drawn.with_data(jnp.arange(len(rows), dtype=rows.dtype), state.clients)
    return LocalContext(
        algorithm, rounds.model, examples, state.server, state.round, client, batch_parts=layout.batch_parts
    )


def _arrays(failure):
    """Client and step, the step's batch and the variables before it, by path."""
    _, client, step = failure.where
    if step is None:
        return {}
    arrays = {"client": client, "step": step, **failure.batch._asdict(), **masks.by_path(failure.variables._asdict())}
    return {name: np.asarray(array) for name, array in arrays.items()}
