"""One round of a cohort: who takes part, their local training, and the server's step.

All randomness is derived from identities (round, client, epoch), never from a position, so the numbers depend neither
on the layout of clients nor on whether their data and states are stored on the device or on the host.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Client, ClientState, Drawn, Examples, Key, Ownership, PyTree, Server, Variables
from fedjax_collapse.engine import skipping
from fedjax_collapse.engine.client_maps import ClientMap, Outcome
from fedjax_collapse.engine.layout import RoundSpec
from fedjax_collapse.engine.participation import Participation
from fedjax_collapse.engine.skipping import where
from fedjax_collapse.optim.aggregation import Upload, weigh
from fedjax_collapse.training import local, server
from fedjax_collapse.training.algorithm import FedAvg


class Assignment(NamedTuple):
    """What is fixed for a run besides the examples: their ownership, and the rules of participation."""

    ownership: Ownership
    participation: Participation = Participation()
    order: jax.Array | None = None  # [stored] identities of the stored client states (``home_order``); None: ascending


class Watched(NamedTuple):
    """The trained local models of the watched clients that were in the cohort."""

    ids: jax.Array  # [watched] identities; the number of clients, and arbitrary variables, if it was not in the cohort
    variables: Variables  # stacked, without what they have in common (``FedAvg.common_to_clients``)
    received: Variables  # the server's model, from which their training started

    def collected(self, spec: RoundSpec) -> "Watched":
        """Returns them after a call's last round, until when each model stays on the device that trained it."""
        return self._replace(variables=spec.layout.client_map.collect(self.variables))


class Received(NamedTuple):
    """The model and the methods' state that all clients of a round receive."""

    server: Server  # as it was sent to them
    round: jax.Array | int  # number of rounds done
    examples: Examples
    key: Key | None = None  # of the run's rounds; None where the server makes no step


class Cohort(NamedTuple):
    """A drawn cohort with the data on its devices."""

    drawn: Drawn
    rows: jax.Array  # [cohort, capacity], of each client among the examples
    examples: Examples  # all of them, or of each device those of its clients, each with the same padding


class CohortResult(NamedTuple):
    """The results of a cohort besides its uploads, by client in the cohort's order."""

    states: ClientState  # stacked
    steps: jax.Array  # [cohort] optimizer steps
    metrics: dict[str, jax.Array]  # each [cohort]
    watched: Watched


def draw(
    spec: RoundSpec,
    algorithm: FedAvg,
    assignment: Assignment,
    key: Key,
    round: jax.Array,
    left_out: jax.Array | None = None,
    cohort: jax.Array | None = None,
) -> Drawn:
    """Draws a round's cohort: its clients, stacked, in the layout's order and padded.

    Args:
        spec: the static description of the rounds.
        algorithm: the algorithm.
        assignment: ownership and participation.
        key: of the run's rounds.
        round: the number of the round, from 0.
        left_out: [clients] clients that are treated as if they had dropped out; only without ``Assignment.order``.
        cohort: the identities, if they are drawn already.
    """
    sizes = assignment.ownership.sizes
    rule = assignment.participation.in_round(key, round, len(sizes))
    key_run, key = key, jax.random.fold_in(key, round)
    if assignment.order is None:
        cohort = rule.draw(key, sizes, spec.layout.cohort_size) if cohort is None else cohort
        cohort = without(rule.survivors(key, cohort, len(sizes)), left_out)
        cohort = arrange(cohort, sizes, spec.layout.client_map)
    else:
        cohort = assignment.order
    budgets = rule.budgets(key, cohort, len(sizes))
    seconds = None
    if rule.has_deadline:
        each, of_all = algorithm.trained_sizes(sizes), rule.budgets(key, jnp.arange(len(sizes)), len(sizes))
        planned = sum(steps for _, steps in algorithm.local_training.phase_steps(each, of_all))  # [clients]
        seconds = rule.clock.seconds(key_run, planned)
    arrives = rule.arrivals(key, cohort, len(sizes), seconds)
    expected = rule.expected_size(len(sizes)) if algorithm.weights_by == "expected" else None
    drawn = stack(algorithm, cohort, sizes, Stream.CLIENTS.key(key), budgets, arrives, expected)
    return spec.layout.client_map.keep_replicated(drawn)


def arrange(cohort: jax.Array, sizes: jax.Array, client_map: ClientMap) -> jax.Array:
    """Returns the cohort in the order of the client map, padded to a multiple of its clients at once.

    Sorted by size, the clients of a chunk have similar numbers of steps and wait little for one another. The identity
    of padding is the number of clients.
    """
    padding = jnp.full(-len(cohort) % client_map.clients_at_once, len(sizes), cohort.dtype)
    own_sizes = jnp.where(cohort < len(sizes), sizes.at[cohort].get(mode="clip"), 0)
    return client_map.arrange(jnp.concatenate([padding, cohort[jnp.argsort(own_sizes)]]))


def everyone(sizes: jax.Array, client_map: ClientMap) -> jax.Array:
    """Returns all clients, arranged as a cohort."""
    return arrange(jnp.arange(len(sizes)), sizes, client_map)


def without(cohort: jax.Array, left_out: jax.Array | None) -> jax.Array:
    """Replaces the identities of ``left_out`` clients by the identity of padding; None leaves out no client."""
    if left_out is None:
        return cohort
    return jnp.where(left_out.at[cohort].get(mode="clip"), len(left_out), cohort)


def home_order(spec: RoundSpec, assignment: Assignment) -> jax.Array | None:
    """Returns the identities in the order of all cohorts, so that client states are stored where their clients run.

    None if cohorts differ, for example because clients are left out, and on one device, where the order has no effect.
    """
    layout, sizes = spec.layout, assignment.ownership.sizes
    is_fixed = assignment.participation.is_everyone(len(sizes), layout.cohort_size) and not spec.skips
    if spec.run_map is not None or layout.client_map.num_devices == 1 or not is_fixed:
        return None
    return everyone(sizes, layout.client_map)


def device_steps(sizes: np.ndarray, batch_size: int, client_map: ClientMap) -> np.ndarray:
    """Returns the steps [devices] of an epoch in which all clients take part."""
    ids = np.asarray(everyone(jnp.asarray(sizes), client_map))
    steps = np.append(-(-np.asarray(sizes) // batch_size), 0)  # padding takes none
    return steps[ids].reshape(client_map.num_devices, -1).sum(axis=1)


def stack(
    algorithm: FedAvg,
    cohort: jax.Array,
    sizes: jax.Array,
    key: Key,
    budgets: jax.Array | None,
    arrives: jax.Array | None = None,
    expected: float | None = None,
) -> Drawn:
    """Returns the cohort's clients, stacked; those that only pad get size 0 and weight 0.

    Args:
        algorithm: decides how clients are weighted.
        cohort: [cohort] identities.
        sizes: [clients] number of examples of all clients.
        key: the key from which the clients' keys are derived in this round.
        budgets: [cohort] the fraction of its steps that each client takes; None means all of them.
        arrives: [cohort] whether each upload reaches the server; None means that every upload does.
        expected: the number of clients by which equal weights are divided; None is the number of those that count.
    """
    num_clients, trained = len(sizes), algorithm.trained_sizes(sizes)
    is_real = cohort < num_clients

    def of_cohort(sizes):
        return jnp.where(is_real, sizes.at[cohort].get(mode="clip"), 0)

    own_sizes = of_cohort(trained)
    is_counted = is_real if arrives is None else arrives
    counted = own_sizes if arrives is None else jnp.where(arrives, own_sizes, 0)
    batches = counted // algorithm.training.batch_size
    batches = jnp.where(jnp.sum(batches) > 0, batches, counted)  # if no client has a whole batch
    weights = {"size": counted, "batches": batches}.get(algorithm.weights_by, is_counted)
    return Drawn(
        id=cohort,
        size=own_sizes,
        weight=weights / (jnp.sum(weights) if expected is None else expected),
        key=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, cohort),
        num_clients=jnp.full(len(cohort), num_clients),
        mean_size=jnp.full(len(cohort), jnp.sum(trained) / num_clients),
        budget=budgets,
        arrives=arrives,
        held_out=of_cohort(sizes - trained) if algorithm.having("validation") else None,
        expected=None if expected is None else jnp.full(len(cohort), expected, jnp.result_type(float)),
    )


def no_models(spec: RoundSpec, algorithm: FedAvg, server: Server) -> Variables:
    """Returns buffers of zeros for the variables that watched clients train, one buffer per device."""
    client_map, own = spec.layout.client_map, masks.without(algorithm.common_to_clients(spec.model), server.variables)
    count = spec.num_watched * client_map.num_devices
    return client_map.keep_sharded(jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), own))


def train(
    spec: RoundSpec, algorithm: FedAvg, received: Received, clients: Client, slots: Variables
) -> tuple[Upload, CohortResult]:
    """Trains the cohort and returns the sum of its weighted uploads and its results.

    Args:
        spec: the static description of the rounds.
        algorithm: the algorithm.
        received: the variables and state that all clients receive.
        clients: the cohort.
        slots: the buffers for the watched models, from ``no_models`` or an earlier round; they are overwritten.

    Returns:
        The sum of the uploads, and the results; if clients are skipped, the metrics mark those that diverge.
    """
    watched_ids = spec.watched_ids(clients.id, clients.num_clients[0])

    def train_client(context):
        client, result = context.client, local.run(context)
        upload, state, trained = result
        steps = trained.steps.astype(jnp.result_type(float))  # exact up to 16 million, and one exchange with the rest
        metrics = skipping.marked(client, result, spec.model.task.metric) if spec.skips else trained.metrics
        stacked = ()
        if algorithm.stacking:
            stacked, upload = upload.mean.params, upload._replace(mean=upload.mean._replace(params=()))
        upload = weigh(upload, client.weight, client.is_counted)
        own = masks.without(algorithm.common_to_clients(spec.model), trained.variables)
        return Outcome(upload, (state, stacked), (steps, metrics), own, _position(watched_ids, client.id))

    outcome = _map_clients(spec, algorithm, received, clients, train_client, slots)
    (states, stacked), (steps, metrics), upload = outcome.result, outcome.numbers, outcome.summand
    if algorithm.stacking:
        params = server.combine_uploads(algorithm, received.server, received.round, clients, stacked)
        upload = upload._replace(mean=upload.mean._replace(params=params))
    if clients.arrives is not None:
        metrics = {**metrics, "arrived": clients.arrives.astype(steps.dtype)}
    watched = Watched(watched_ids, outcome.kept, received.server.variables)
    return upload, CohortResult(states, steps.astype(clients.size.dtype), metrics, watched)


def aggregate(
    spec: RoundSpec, algorithm: FedAvg, received: Received, clients: Client, upload: Upload, result: CohortResult
) -> tuple[Server, CohortResult]:
    """Returns the server after the cohort's round, and the result.

    If clients are skipped, the result's metrics also mark clients whose measurements of the new model diverge.
    ``upload`` and ``result`` are what ``train`` returned.
    """
    divided = None if clients.expected is None else server.Divided(clients.expected[0], received.round, received.key)
    new, measured = server.aggregate(algorithm, spec.model, received.server, upload, divided), {}
    if algorithm.having("measure", "round"):
        measured, diverged = measure(spec, algorithm, received._replace(server=new), clients, "round")
        if spec.skips:
            result = result._replace(metrics=skipping.with_measured(result.metrics, new, clients, diverged))
    new = server.after_measuring(algorithm, spec.model, received.server.variables, new, measured, "round")
    if spec.skips:  # weights are NaN if no client is left
        new = where(jnp.sum(clients.weight) > 0, new, received.server)
    return new, result


def train_and_aggregate(
    spec: RoundSpec,
    algorithm: FedAvg,
    server: Server,
    states: ClientState,
    round: jax.Array,
    key: Key,
    cohort: Cohort,
    slots: Variables | None = None,
) -> tuple[Server, CohortResult]:
    """Returns the server after a cohort's round, and the result; ``states`` are the cohort's.

    ``slots`` are the buffers of ``train``; new ones if they are None.
    """
    slots = no_models(spec, algorithm, server) if slots is None else slots
    clients, received = cohort.drawn.with_data(cohort.rows, states), Received(server, round, cohort.examples, key)
    upload, result = train(spec, algorithm, received, clients, slots)
    return aggregate(spec, algorithm, received, clients, upload, result)


def measure(
    spec: RoundSpec, algorithm: FedAvg, received: Received, clients: Client, when: str
) -> tuple[dict[str, PyTree], PyTree]:
    """Returns the clients' summed reports on the server's model, for the methods that measure it at this time.

    If clients are skipped, also returns which of the reports diverge [cohort].
    """

    def report_of(context):
        client, reports = context.client, local.measure(context, when)
        diverged = skipping.diverged(reports, client) if spec.skips else ()
        return Outcome(weigh(Upload((), reports), client.weight, client.is_counted), numbers=diverged)

    outcome = _map_clients(spec, algorithm, received, clients, report_of)
    return outcome.summand.total, outcome.numbers


def sum_reports(
    spec: RoundSpec,
    algorithm: FedAvg,
    server: Server,
    round: jax.Array | int,
    states: ClientState,
    cohort: Cohort,
    when: str,
) -> tuple[dict[str, PyTree], PyTree]:
    """Returns what ``measure`` returns, for some of all clients; ``states`` are those of the cohort."""
    received = Received(server, round, cohort.examples)
    return measure(spec, algorithm, received, cohort.drawn.with_data(cohort.rows, states), when)


def after_reports(
    spec: RoundSpec, algorithm: FedAvg, old: Server, reports: dict[str, PyTree], left_out: jax.Array | None, when: str
) -> Server:
    """Returns the server after all clients have measured its model; unchanged if all are left out."""
    new = server.after_measuring(algorithm, spec.model, old.variables, old, reports, when)
    return new if left_out is None else where(~jnp.all(left_out), new, old)


def _map_clients(spec, algorithm, received, clients, function, slots=()):
    """Maps a function of ``LocalContext`` over the clients and returns its outcome."""

    def of_client(given, client):
        current, examples = given
        context = local.LocalContext(algorithm, spec.model, examples, current, received.round, client)
        return function(context._replace(batch_parts=spec.layout.batch_parts))

    is_part = received.examples.identities is not None  # then each device has the examples of its own clients
    divided = False, Examples(is_part, is_part, mean=False, std=False, identities=is_part, pad=False)
    return spec.layout.client_map(of_client, (received.server, received.examples), clients, slots, divided)


def _position(ids: jax.Array, id: jax.Array) -> jax.Array:
    """Returns the position of an identity among the others; their number if it is not among them."""
    return jnp.min(jnp.where(ids == id, jnp.arange(len(ids)), len(ids)))
