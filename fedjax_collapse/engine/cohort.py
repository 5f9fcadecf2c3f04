"""One round of a cohort: who takes part, and what their local training makes of the server.

All randomness comes from identities (round, client, epoch), never from a position, so the numbers do not depend on how
clients are laid out, nor on whether their data and states lie on the device or on the host.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.aggregation import Upload, weigh
from fedjax_collapse.algorithms import base
from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.engine.layout import Layout
from fedjax_collapse.records import Client, ClientState, Examples, Key, Model, Ownership, PyTree, Server, Variables

_COHORT, _CLIENT = 0, 1  # streams of randomness within a round


class Outcome(NamedTuple):
    """What a cohort's round leaves, besides the server; client by client in the cohort's order."""

    states: ClientState  # stacked
    steps: jax.Array  # [cohort] optimizer steps
    metrics: dict[str, jax.Array]  # each [cohort]
    watched: Variables  # the local model of the member of lowest identity


def draw(key: Key, round: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
    """Identities [cohort_size] of a round's distinct clients, uniformly drawn."""
    if cohort_size == num_clients:
        return jnp.arange(num_clients)
    key = jax.random.fold_in(jax.random.fold_in(key, round), _COHORT)
    return jax.random.permutation(key, num_clients)[:cohort_size]


def arrange(cohort: jax.Array, sizes: jax.Array, client_map: ClientMap) -> jax.Array:
    """The cohort in the order that the client map wants, padded to a multiple of its clients at once.

    Sorted by size, the clients of a chunk have similar numbers of steps and wait little for one another. Identities of
    padding are those behind the last client's.
    """
    padding = jnp.full(-len(cohort) % client_map.clients_at_once, len(sizes), cohort.dtype)
    by_size = cohort[jnp.argsort(sizes[cohort])]
    return client_map.arrange(jnp.concatenate([padding, by_size]))


def device_steps(sizes: np.ndarray, batch_size: int, client_map: ClientMap) -> np.ndarray:
    """Steps [devices] of an epoch in which all clients take part."""
    ids = np.asarray(arrange(jnp.arange(len(sizes)), jnp.asarray(sizes), client_map))
    steps = np.append(-(-np.asarray(sizes) // batch_size), 0)  # padding takes none
    return steps[ids].reshape(client_map.num_devices, -1).sum(axis=1)


def stack(
    algorithm: Algorithm, cohort: jax.Array, rows: jax.Array, states: ClientState, sizes: jax.Array, key: Key
) -> Client:
    """The cohort as stacked clients; those that only pad get size 0 and weight 0.

    ``rows``, ``states``: of the cohort, in its order; ``sizes``: of all clients.
    """
    num_clients = len(sizes)
    is_real = cohort < num_clients
    own_sizes = jnp.where(is_real, sizes.at[cohort].get(mode="clip"), 0)
    batches = own_sizes // algorithm.training.batch_size
    batches = jnp.where(jnp.sum(batches) > 0, batches, own_sizes)  # where nobody has a whole batch
    weights = {"size": own_sizes, "equal": is_real, "batches": batches}[algorithm.weighting]
    return Client(
        id=cohort,
        rows=rows,
        size=own_sizes,
        weight=weights / jnp.sum(weights),
        state=states,
        key=jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, cohort),
        num_clients=jnp.full(len(cohort), num_clients),
        mean_size=jnp.full(len(cohort), jnp.sum(sizes) / num_clients),
    )


def pick(algorithm: Algorithm, cohort: jax.Array, ownership: Ownership, states: ClientState, key: Key) -> Client:
    """The cohort as stacked clients, from what is stored of all of them."""

    def of_cohort(leaf):
        return leaf.at[cohort].get(mode="clip")

    return stack(algorithm, cohort, of_cohort(ownership.rows), jax.tree.map(of_cohort, states), ownership.sizes, key)


def round_key(key: Key, round: jax.Array) -> Key:
    """The randomness of the clients' training in a round."""
    return jax.random.fold_in(jax.random.fold_in(key, round), _CLIENT)


def run(
    algorithm: Algorithm,
    server: Server,
    round: jax.Array,
    clients: Client,
    examples: Examples,
    num_clients: int,
    *,
    model: Model,
    layout: Layout,
) -> tuple[Server, Outcome]:
    """The server after the cohort's round, and what the clients leave."""
    watched_id = jnp.min(clients.id)

    def run_client(shared, client):
        server, examples = shared
        context = (algorithm, model, examples, server, round)
        upload, state, trained = base.local(*context, client, batch_parts=layout.batch_parts)
        upload = weigh(upload, client.weight, client.id < num_clients)
        watched = jax.tree.map(lambda leaf: jnp.where(client.id == watched_id, leaf, 0), trained.variables)
        return (upload, watched), (state, trained.steps, trained.metrics)

    (upload, watched), results = layout.client_map(run_client, (server, examples), clients)
    server = base.aggregate(algorithm, server, upload)
    if algorithm.recalibrate:
        server = _recalibrate(algorithm, server, examples, clients, num_clients, model, layout)
    return server, Outcome(*results, watched)


def first_reports(
    algorithm: Algorithm, server: Server, clients: Client, examples: Examples, *, model: Model, layout: Layout
) -> dict[str, PyTree]:
    """The clients' summed reports on the initial model, of the regularizers that start with one."""

    def report(shared, client):
        server, examples = shared
        reports = base.first_report(algorithm, model, examples, server, client)
        return weigh(Upload((), reports), client.weight, client.size > 0), ()

    upload, _ = layout.client_map(report, (server, examples), clients)
    return upload.total


def _recalibrate(algorithm, server, examples, clients, num_clients, model, layout):
    """The server with the running statistics that the cohort measures on its model."""

    def measure(shared, client):
        variables, examples = shared
        measured = base.batch_statistics(algorithm, model, examples, variables, client)
        return weigh(Upload(measured), client.weight, client.id < num_clients), ()

    upload, _ = layout.client_map(measure, (server.variables, examples), clients)
    return server._replace(variables=server.variables._replace(batch_stats=upload.mean))
