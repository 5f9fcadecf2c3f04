"""BYOL: predictions of one view approach the projections that a moving average of the network makes of the other one.

    loss = 4 - 2 cos(p_1, h'_2) - 2 cos(p_2, h'_1);  after each step   target <- m target + (1 - m) params

Grill et al., "Bootstrap Your Own Latent" (NeurIPS 2020). h' are projections of the target network, in training mode, so
that BatchNorm takes the statistics of the batch; there is no gradient through them. Federated, as in EasyFL (Zhuang et
al., ICCV 2021): the target stays at its client, begins as a copy of the first received model, and m is constant, while
BYOL's increases over training. The target's predictor, which nothing reads, is stored as well.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.losses import view_similarity
from fedjax_collapse.methods.base import FinishView, LocalView, Method, RoundView
from fedjax_collapse.nn.task import siamese_outputs
from fedjax_collapse.schema.options import Share


class Target(NamedTuple):
    """The params of the target network."""

    params: PyTree
    is_own: jax.Array  # bool; False before the client's first round
    is_behind: jax.Array  # bool; whether the average lacks the params after the last step


class BYOL(Method):
    """The loss between predictions and a target network's projections, in place of the task's.

    Args:
        momentum: m of the moving average, of each step.
    """

    needs = ("views",)

    momentum: Share = 0.99

    def init_memory(self, variables: Variables, shapes: Outputs) -> Target:
        return Target(variables.params, jnp.zeros((), bool), jnp.zeros((), bool))

    def init_carry(self, view: RoundView) -> Target:
        own = view.memory
        params = jax.tree.map(lambda own_, sent: jnp.where(own.is_own, own_, sent), own.params, view.server.params)
        return own._replace(params=params)

    def carry(self, view: LocalView) -> Target:
        return self._moved(view.carry, view.params)._replace(is_behind=jnp.ones((), bool))

    def task(self, view: LocalView) -> jax.Array:
        target = Variables(self._moved(view.carry, view.params).params, view.server.batch_stats)
        outputs, _ = view.model.apply(jax.lax.stop_gradient(target), view.batch, train=True)
        (projections, _), (_, predictions) = siamese_outputs(outputs), siamese_outputs(view.outputs)
        return 4 - 4 * view_similarity(predictions, projections, view.batch.mask)

    def finish(self, view: FinishView) -> tuple[Target, PyTree]:
        return Target(self._moved(view.carry, view.trained.params).params, jnp.ones((), bool), jnp.zeros((), bool)), ()

    def _moved(self, target, params):
        """Returns the target with the average of the last step, if it is behind."""
        weight = jnp.where(target.is_behind, self.momentum, 1)
        moved = jax.tree.map(lambda t, p: (weight * t + (1 - weight) * p).astype(t.dtype), target.params, params)
        return target._replace(params=moved)
