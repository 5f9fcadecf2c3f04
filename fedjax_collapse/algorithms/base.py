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

from fedjax_collapse.aggregation import Upload
from fedjax_collapse.algorithms.local_training import LocalTraining, sum_over_data, train
from fedjax_collapse.records import (
    Batch,
    Client,
    ClientState,
    Examples,
    Model,
    Outputs,
    PyTree,
    Server,
    Trained,
    Variables,
)
from fedjax_collapse.regularizers.base import FinishView, Regularizer


class Algorithm:
    """Defaults are plain federated averaging. Subclasses are final: they override hooks and never call ``super``.

    Every subclass has the fields ``training`` and ``regularizers``.
    """

    training: LocalTraining
    regularizers: Mapping[str, Regularizer]

    def check(self) -> None:
        """Raises UserError for values that make no sense; called once, outside compiled code, before a run."""

    def init_server(self, variables: Variables) -> PyTree:
        del variables
        return ()

    def init_client(self, variables: Variables) -> PyTree:
        del variables
        return ()

    def correct(self, gradient: PyTree, params: PyTree, server: Server, client: ClientState) -> PyTree:
        """The gradient that the local optimizer sees."""
        del params, server, client
        return gradient

    def finish(self, server: Server, client: ClientState, trained: Trained) -> tuple[Upload, PyTree]:
        """One client's upload and new extra state."""
        del server
        return Upload(mean=trained.variables), client.extra

    def aggregate(self, server: Server, upload: Upload) -> tuple[Variables, PyTree]:
        """The server's new variables and extra state, from the reduced upload."""
        return upload.mean, server.extra


def check(algorithm: Algorithm) -> None:
    """Raises UserError, naming the value, if any hyper-parameter of the algorithm or its parts makes no sense."""
    algorithm.training.check()
    algorithm.check()
    for regularizer in algorithm.regularizers.values():
        regularizer.check()


def without_silent_regularizers(algorithm: Algorithm) -> Algorithm:
    """The algorithm without the regularizers whose strength is 0: they cost nothing and change nothing, bit for bit.

    Left in, ``0 * term`` would make XLA fuse and so round other operations differently.
    """
    heard = {name: r for name, r in algorithm.regularizers.items() if not r.is_silent()}
    return dataclasses.replace(algorithm, regularizers=heard)


def init(algorithm: Algorithm, model: Model, variables: Variables) -> tuple[Server, ClientState]:
    """The server's state, and the state of ONE client, before the first round."""
    shapes = _output_shapes(model, variables)
    shared = {name: r.init_shared(variables, shapes) for name, r in algorithm.regularizers.items()}
    memory = {name: r.init_memory(variables, shapes) for name, r in algorithm.regularizers.items()}
    server = Server(variables, shared, algorithm.init_server(variables))
    return server, ClientState(memory, algorithm.init_client(variables))


def local(
    algorithm: Algorithm, model: Model, examples: Examples, server: Server, round: jax.Array, client: Client
) -> tuple[Upload, ClientState, Trained]:
    """One client's round: train from the server's variables, then say what to upload and what to remember."""
    trained = train(algorithm, model, examples, server, round, client)
    upload, extra = algorithm.finish(server, client.state, trained)
    memory, reports = {}, {}
    for name, regularizer in algorithm.regularizers.items():
        view = FinishView(
            trained=trained.variables,
            server=server.variables,
            shared=server.shared[name],
            memory=client.state.memory[name],
            round=round,
            client=client.id,
            sum_over_data=functools.partial(sum_over_data, algorithm.training.batch_size, model, examples, client),
        )
        memory[name], reports[name] = regularizer.finish(view)
    upload = Upload(upload.mean, (upload.total, reports))
    return upload, ClientState(memory, extra), trained


def aggregate(algorithm: Algorithm, server: Server, upload: Upload) -> Server:
    """The server after a round, from the cohort's reduced uploads."""
    total, reports = upload.total
    variables, extra = algorithm.aggregate(server, Upload(upload.mean, total))
    shared = {name: r.combine(server.shared[name], reports[name]) for name, r in algorithm.regularizers.items()}
    return Server(variables, shared, extra)


def _output_shapes(model: Model, variables: Variables) -> Outputs:
    images = jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
    batch = Batch(images, jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1,), bool))
    return jax.eval_shape(lambda v, b: model.apply(v, b, train=False)[0], variables, batch)
