"""SSD: clients align and spread projections, and each enlarges the dimensions that are its own.

    loss = E ||z_1 - z_2||^2 + log E exp(-t ||z_i - z_j||^2) + E ||z - stop(z d_k)||^2
           + 0.1 E KL(softmax(f) || softmax(z))

Fang et al. (ICCV 2025, arXiv 2508.01251), known to us from notes only. ``d_k`` is ``scale`` on the client's own
dimensions and 1 elsewhere; f are the encoder's features, z the projections. What the notes do not say is ours: the
exponents are Wang & Isola's; projections are scaled to norm 1 before every term, because otherwise they grow without
bound; client k owns the k-th part of the dimensions, as many as there are for each; terms are means of both views; and
the last one has no gradient through z. The head's predictor is not used.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.losses import masked_mean, pair_uniformity
from fedjax_collapse.losses.contrastive import clipped_unit
from fedjax_collapse.methods.base import LocalView, Method, Setup, Term
from fedjax_collapse.nn.task import siamese_outputs
from fedjax_collapse.schema.options import NonNegative, Positive, option


class SSD(Method):
    """Alignment and uniformity in place of the task's loss, and two terms.

    Args:
        strength: factor of the term that enlarges the client's dimensions.
        scale: how much larger they are to be.
        distillation: factor of the divergence between features and projections, of equal dimension.
        exponent: t of the uniformity.
        stopped: whether the divergence's gradient leaves out the ``projections``.
    """

    needs = ("views",)

    strength: NonNegative = 1.0
    scale: Positive = 10.0
    distillation: NonNegative = 0.1
    exponent: Positive = 2.0
    stopped: str = option("projections", choices=("projections", "none"))

    def check_with(self, setup: Setup) -> None:
        shapes = setup.model.initial_shapes()
        of_features, of_projections = shapes.features.shape[-1], shapes.logits.shape[-1]
        if self.distillation != 0 and of_features != of_projections:
            raise UserError(
                f"SSD: {of_features} features, {of_projections} projections; expected as many, set the head's "
                f"dim={of_features}, or distillation=0"
            )

    def init_shared(self, variables: Variables, shapes: Outputs, setup: Setup) -> PyTree:
        dim = shapes.logits.shape[-1]
        if setup.num_clients > dim:
            raise UserError(f"SSD: {setup.num_clients} clients share {dim} dimensions; enlarge the head's dim")
        return ()

    def task(self, view: LocalView) -> jax.Array:
        first, second = projections = self._projections(view)
        align = masked_mean(jnp.sum((first - second) ** 2, axis=1), view.batch.mask)
        return align + sum(pair_uniformity(z, view.batch.mask, self.exponent) for z in projections) / 2

    def penalty(self, view: LocalView) -> dict[str, Term]:
        projections, mask = self._projections(view), view.batch.mask
        dim = projections.shape[-1]
        is_own = jnp.arange(dim) // jnp.maximum(dim // view.client.num_clients, 1) == view.client.id
        targets = jax.lax.stop_gradient(
            projections * jnp.where(is_own, self.scale, 1).astype(projections.dtype)[None, None]
        )
        terms = {"scaling": Term(self.strength, _mean(jnp.sum((projections - targets) ** 2, axis=2), mask))}
        features = jnp.stack([outputs.features for outputs in (view.outputs, *view.outputs.views)])
        if features.shape == projections.shape:
            z = jax.lax.stop_gradient(projections) if self.stopped == "projections" else projections
            log_p, log_q = jax.nn.log_softmax(features), jax.nn.log_softmax(z)
            terms["distillation"] = Term(
                self.distillation, _mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=2), mask)
            )
        return terms

    def _projections(self, view):
        projections, _ = siamese_outputs(view.outputs)
        return clipped_unit(projections)


def _mean(values, mask):
    """Returns the mean over views and true rows of ``values`` [views, batch]."""
    return sum(masked_mean(of_view, mask) for of_view in values) / len(values)
