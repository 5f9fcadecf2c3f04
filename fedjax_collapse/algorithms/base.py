"""The contract of an algorithm, and how it is put together with a model and regularizers.

An algorithm says how gradients are corrected, what a client uploads and what the server makes of the sums. It is a
frozen dataclass whose numbers are pytree leaves (traced) and whose choices are static. The functions ``init``,
``local`` and ``aggregate`` at the end combine it with the model and with any regularizers; the engine maps ``local``
over clients.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse import selection
from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.local_loop import train
from fedjax_collapse.algorithms.local_training import LocalTraining
from fedjax_collapse.data.batches import sum_batches
from fedjax_collapse.records import (
    Client,
    ClientState,
    Examples,
    Model,
    PyTree,
    Scalar,
    Server,
    Trained,
    UserError,
    Variables,
)
from fedjax_collapse.regularizers.base import FinishView, Regularizer, check_options, option


@struct.dataclass
class Algorithm:
    """Defaults are plain federated averaging. Subclasses are final: they override hooks and never call ``super``.

    ``weighting``: of the clients' uploads in ``Upload.mean``, by their number of examples, all equal, or by their
    number of whole batches (FedMR's released code).
    ``private``: the part of the network that every client keeps for itself (``selection.py``); ``batch_norm`` is FedBN
    (Li et al., 2021). The server's own copy of it stays as initialised, and no hook sees a client's.
    ``recalibrate``: instead of averaging BatchNorm's running statistics, measure them after each round: the cohort
    runs the new model once over its data, and the mean over its batches is what the server keeps.
    """

    training: LocalTraining = LocalTraining()
    regularizers: Mapping[str, Regularizer] = struct.field(default_factory=dict)
    weighting: str = option("size", choices=("size", "equal", "batches"))
    private: str = option("none", choices=("none", "batch_norm"))
    recalibrate: bool = option(False, choices=(False, True))

    def check(self) -> None:
        """Raises UserError for values that make no sense; called once, outside compiled code, before a run."""

    def init_server(self, variables: Variables) -> PyTree:
        del variables
        return ()

    def init_client(self, variables: Variables) -> PyTree:
        del variables
        return ()

    def correct(self, gradient: PyTree, params: PyTree, server: Server, client: Client) -> PyTree:
        """The gradient that the local optimizer sees, before it is clipped."""
        del params, server, client
        return gradient

    def decay(self, client: Client) -> Scalar | None:
        """Weight decay that the algorithm adds after clipping to the one of ``training``; None is none."""
        del client

    def finish(self, server: Server, client: Client, trained: Trained) -> tuple[Upload, PyTree]:
        """One client's upload and new extra state. The state of a client outside the cohort stays as it is."""
        del server
        return Upload(mean=trained.variables), client.state.extra

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        """The server's new variables and extra state, from the reduced upload."""
        return upload.mean, server.extra

    def evaluated(self, server: Server) -> Variables:
        """The model that is evaluated."""
        return server.variables


def check(algorithm: Algorithm, model: Model | None = None) -> None:
    """Raises UserError, naming the value, if any hyper-parameter of the algorithm or its parts makes no sense, or if
    the model lacks a part that one of them names."""
    algorithm.training.check()
    check_options(algorithm)
    algorithm.check()
    for regularizer in algorithm.regularizers.values():
        regularizer.check()
    if model is not None:
        _check_model(algorithm, model)


def _check_model(algorithm, model):
    variables = jax.eval_shape(model.init, jax.random.key(0))
    name = type(model.module).__name__
    shapes = model.output_shapes(variables)
    if getattr(shapes, "features", None) is None:
        raise UserError(f"network {name}: it returns no features, expected Outputs(features [batch, d], logits)")
    _server_only(algorithm, variables)
    if algorithm.recalibrate and algorithm.private != "none":
        raise UserError(f"recalibrate: there is nothing to measure, private {algorithm.private!r} stays at the clients")
    if algorithm.recalibrate and not variables.batch_stats:
        raise UserError(f"recalibrate: network {name} has no BatchNorm, so there are no running statistics")
    for regularizer in algorithm.regularizers.values():
        regularizer.check_network(model.module)


def without_silent_regularizers(algorithm: Algorithm) -> Algorithm:
    """The algorithm without the regularizers whose strength is 0: they cost nothing and change nothing, bit for bit.

    Left in, ``0 * term`` would make XLA fuse and so round other operations differently.
    """
    heard = {name: r for name, r in algorithm.regularizers.items() if not r.is_silent()}
    return dataclasses.replace(algorithm, regularizers=heard)


def init(algorithm: Algorithm, model: Model, variables: Variables) -> tuple[Server, ClientState]:
    """The server's state, and the state of ONE client, before the first round."""
    shapes = model.output_shapes(variables)
    shared = {name: r.init_shared(variables, shapes) for name, r in algorithm.regularizers.items()}
    memory = {name: r.init_memory(variables, shapes) for name, r in algorithm.regularizers.items()}
    server = Server(variables, shared, algorithm.init_server(variables))
    private = selection.pick(selection.part(algorithm.private, variables), variables)
    return server, ClientState(memory, algorithm.init_client(variables), private)


def evaluated(algorithm: Algorithm, server: Server, clients: ClientState) -> Variables:
    """The server's model as it is evaluated; ``clients`` are all of them, stacked.

    What is private to clients is the mean over all of them there: the server's own copy was never trained.
    """
    variables = algorithm.evaluated(server)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, dtype=leaf.dtype), clients.private)
    return selection.put(selection.part(algorithm.private, variables), variables, mean)


def personal(algorithm: Algorithm, server: Server, client: ClientState) -> Variables:
    """The model of ONE client: the server's, with the parts that the client keeps for itself."""
    return selection.put(selection.part(algorithm.private, server.variables), server.variables, client.private)


def local(
    algorithm: Algorithm,
    model: Model,
    examples: Examples,
    server: Server,
    round: jax.Array,
    client: Client,
    batch_parts: int = 1,
) -> tuple[Upload, ClientState, Trained]:
    """One client's round: train from the server's variables, then say what to upload and what to remember."""
    received = server._replace(variables=personal(algorithm, server, client.state))
    trained = train(algorithm, model, examples, received, round, client, batch_parts)
    private = selection.part(algorithm.private, server.variables)
    shown = trained._replace(variables=selection.choose(private, server.variables, trained.variables))
    upload, extra = algorithm.finish(server, client, shown)
    memory, reports = {}, {}
    for name, regularizer in algorithm.regularizers.items():
        view = _finish_view(algorithm, model, examples, received, round, client, trained.variables, name)
        memory[name], reports[name] = regularizer.finish(view)
    upload = Upload(upload.mean, (upload.total, reports))
    return upload, ClientState(memory, extra, selection.pick(private, trained.variables)), trained


def first_report(
    algorithm: Algorithm, model: Model, examples: Examples, server: Server, client: Client
) -> dict[str, PyTree]:
    """One client's reports on the initial model, of the regularizers that start with one."""
    view = functools.partial(_finish_view, algorithm, model, examples, server, 0, client, server.variables)
    starting = {name: r for name, r in algorithm.regularizers.items() if r.starts_with_report()}
    return {name: regularizer.finish(view(name))[1] for name, regularizer in starting.items()}


def start(algorithm: Algorithm, server: Server, reports: dict[str, PyTree]) -> Server:
    """The server before the first round, from the summed first reports of all clients."""
    combined = {name: algorithm.regularizers[name].combine(server.shared[name], r) for name, r in reports.items()}
    return server._replace(shared={**server.shared, **combined})


def batch_statistics(
    algorithm: Algorithm, model: Model, examples: Examples, variables: Variables, client: Client
) -> PyTree:
    """What layers with running statistics measure in the client's batches, in their stored order: the mean over its
    examples of their batch's measurement."""

    def summarize(batch):
        count = jnp.sum(batch.mask)
        return jax.tree.map(lambda leaf: count * leaf, model.batch_statistics(variables, batch))

    total = sum_batches(algorithm.training.batch_size, examples, client.rows, client.size, summarize)
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(client.size, 1), total)


def aggregate(algorithm: Algorithm, server: Server, upload: Upload) -> Server:
    """The server after a round, from the cohort's reduced uploads."""
    total, reports = upload.total
    variables, extra = algorithm.aggregate(server, Upload(upload.mean, total))
    variables = selection.choose(_server_only(algorithm, server.variables), server.variables, variables)
    shared = {name: r.combine(server.shared[name], reports[name]) for name, r in algorithm.regularizers.items()}
    return Server(variables, shared, extra)


def _finish_view(algorithm, model, examples, received, round, client, variables, name):
    """What a regularizer sees of a client with these variables."""

    def sum_over_data(variables, summarize, train=False):
        def summarize_batch(batch):
            return summarize(model.apply(variables, batch, train)[0], batch)

        return sum_batches(algorithm.training.batch_size, examples, client.rows, client.size, summarize_batch)

    return FinishView(
        trained=variables,
        server=received.variables,
        shared=received.shared[name],
        memory=client.state.memory[name],
        round=round,
        client=client.id,
        sum_over_data=sum_over_data,
    )


def _server_only(algorithm, variables):
    """What the server never changes: private parts, and what is frozen."""
    private = selection.part(algorithm.private, variables)
    freeze = algorithm.training.untrained(variables, at_server=True)
    return jax.tree.map(lambda a, b: a or b, private, freeze)
