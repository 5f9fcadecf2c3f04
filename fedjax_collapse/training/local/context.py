"""All that stays the same while one client works in one round, and what a method may look at of it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import method_key
from fedjax_collapse.core.records import Client, Examples, PyTree, Server, Trained, Variables
from fedjax_collapse.data.batches import sum_batches
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local_training import LocalTraining


class LocalContext(NamedTuple):
    """One client's round: what it has, what it received and what it shall do."""

    algorithm: FedAvg
    model: Model
    examples: Examples
    server: Server  # what it received, with its own private parts in the model
    round: jax.Array
    client: Client
    class_counts: jax.Array | None = None
    batch_parts: int = 1  # into how many parts a batch is cut (``engine.Layout``)

    @property
    def training(self) -> LocalTraining:
        return self.algorithm.local_training

    def view_fields(self, name: str | None = None) -> dict[str, Any]:
        """The fields of ``RoundView`` for a method; without a name, for what is no method's."""
        return dict(
            server=self.server.variables,
            shared=self.server.shared[name] if name else (),
            memory=self.client.state.memory[name] if name else (),
            round=self.round,
            client=self.client,
            class_counts=self.class_counts,
            training=self.training,
            model=self.model,
        )

    def update(self, public: Variables) -> PyTree:
        """The way of the params from the server's to the public ones; 0 in what is private."""
        private = self.model.mask(self.algorithm.private_part).params
        moved = jax.tree.map(jnp.subtract, public.params, self.server.variables.params)
        return masks.zero(private, moved)

    def sent(self, update: PyTree) -> PyTree:
        """The update as it is sent; 0 in what the server does not change."""
        return masks.zero(self.algorithm.fixed(self.model).params, update)

    def finish_view(self, name: str, trained: Trained, public: Variables, sent: PyTree | None = None) -> FinishView:
        """What the method sees after local training. ``public`` is what may leave the client, and ``sent`` its update
        as methods have changed it; None where they have not."""
        update = self.update(public)
        return FinishView(
            **self.view_fields(name),
            trained=trained.variables,
            public=public,
            update=update,
            sent=self.sent(update) if sent is None else sent,
            steps=trained.steps,
            learning_rate=trained.learning_rate,
            key=method_key(self.client.key, name),
            sum_over_batches=functools.partial(
                sum_batches, self.training.batch_size, self.examples, self.client.rows, self.client.size
            ),
        )


def class_counts(model: Model, examples: Examples, client: Client, variables: Variables) -> jax.Array | None:
    """Examples of each class that the client owns, [classes]; None where labels are not those of classes."""
    if not model.task.is_classification:
        return None
    is_owned = jnp.arange(len(client.rows)) < client.size
    counts = jnp.zeros(model.output_shapes(variables).logits.shape[1], jnp.int32)
    return counts.at[examples.labels[client.rows]].add(is_owned)


def as_trained(variables: Variables, context: LocalContext) -> Trained:
    """A model that the client did not train, as if it had done so in no step."""
    return Trained(
        variables, jnp.zeros((), context.client.size.dtype), context.training.learning_rate_in(context.round), {}
    )
