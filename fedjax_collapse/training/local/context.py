"""The constants of one client's round, and the fields of views that methods receive."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Batch, Client, Examples, PyTree, Server, Trained, Variables
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.methods.base import RoundView, check_returned
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.training.algorithm import FedAvg


class LocalContext(NamedTuple):
    """One client's round: its data and state, the received model and state, and the algorithm."""

    algorithm: FedAvg
    model: Model
    examples: Examples
    server: Server  # as the client received it, with the client's private parts in the model
    round: jax.Array
    client: Client
    class_counts: jax.Array | None = None
    batch_parts: int = 0  # the number of parts into which a batch is divided (``engine.Layout``)
    start: Variables | None = None  # the model from which training starts; None is the server's
    carries: Mapping[str, PyTree] = {}  # by method, passed from step to step
    has_metrics: bool = True  # whether the loss's terms and the score are summed over the steps

    @property
    def training(self) -> LocalTraining:
        return self.algorithm.local_training

    def view_fields(self, name: str | None = None) -> dict[str, Any]:
        """Returns the fields of ``RoundView`` for a method, or, without a name, for the task's loss."""
        return dict(
            server=self.server.variables,
            shared=self.server.shared[name] if name else (),
            memory=self.client.state.memory[name] if name else (),
            round=self.round,
            client=self.client,
            class_counts=self.class_counts,
            training=self.training,
            model=self.model,
            carry=self.carries.get(name, ()),
        )

    def batch(self, batch: Batch) -> Batch:
        """Returns the batch on which the client trains in place of ``batch``, one of its own."""
        for name, method in self.algorithm.having("batch").items():
            changed = method.batch(batch, RoundView(**self.view_fields(name)))
            batch = check_returned(name, "batch", changed, batch)
        return batch

    def update(self, public: Variables) -> PyTree:
        """Returns the change of params from the server's model to the public one; 0 in private parts."""
        private = self.model.mask(self.algorithm.private_part).params
        return masks.zero(private, jax.tree.map(jnp.subtract, public.params, self.server.variables.params))

    def sent(self, update: PyTree) -> PyTree:
        """Returns the update that is sent; 0 in variables that the server does not change."""
        return masks.zero(self.algorithm.unchanged_by_server(self.model).params, update)


def class_counts(context: LocalContext, variables: Variables) -> jax.Array | None:
    """Returns how many examples of each class the client trains on, [classes]; None if the task has no classes.

    If every token has a label, tokens are counted.
    """
    model, examples, client = context.model, context.examples, context.client
    if not model.task.is_classification:
        return None
    is_owned = jnp.arange(len(client.rows)) < client.size
    counts = jnp.zeros(model.output_shapes(variables).logits.shape[1], jnp.int32)
    labels = examples.labels[client.rows]
    if context.algorithm.having("batch"):
        batch = context.batch(get_batch(examples, client.rows, is_owned))
        labels, is_owned = batch.labels, batch.mask
    elif examples.pad is not None:
        is_owned = is_owned[:, None] & (labels != examples.pad)
    return counts.at[labels].add(is_owned)


def as_trained(variables: Variables, context: LocalContext) -> Trained:
    """Returns an untrained model with the types of a model after zero steps."""
    steps = jnp.zeros((), context.client.size.dtype)
    return Trained(variables, steps, context.training.learning_rate_in(context.round), metrics={}, carries={})
