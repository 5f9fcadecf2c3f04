"""Recalibrate: measure BatchNorm's running statistics on the new model instead of averaging the clients' statistics.

After each round the cohort runs the new model once over its data, in stored order. The server takes the mean of the
batches' statistics: over a client's batches by their number of rows, over clients by their weights.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, UserError, Variables
from fedjax_collapse.methods.base import FinishView, Method, Setup
from fedjax_collapse.nn.model import Model


class Recalibrate(Method):
    """BatchNorm statistics from a second pass of the cohort."""

    not_sent = ("up/batch_stats/*", "measuring/batch_stats/*")  # they are measured again

    def check_with(self, setup: Setup) -> None:
        if any(jax.tree.leaves(setup.model.mask(setup.private).batch_stats)):
            raise UserError(f"recalibrate: there is nothing to measure, private {setup.private!r} stays at the clients")
        if not setup.model.mask("all").batch_stats:
            name = type(setup.model.module).__name__
            raise UserError(f"recalibrate: network {name} has no BatchNorm, so there are no running statistics")

    def measure(self, view: FinishView) -> PyTree:
        def summarize(batch):
            count = jnp.sum(batch.mask)
            return jax.tree.map(lambda leaf: count * leaf, view.model.batch_statistics(view.trained, batch))

        def weigh(leaf):
            return (view.client.weight * (leaf / jnp.maximum(view.client.size, 1))).astype(leaf.dtype)

        return jax.tree.map(weigh, view.sum_over_batches(summarize))

    def apply(self, variables: Variables, measured: PyTree, model: Model) -> Variables:
        return variables._replace(batch_stats=measured)
