"""FedDr+: align features with the simplex vertex of their class, and keep them close to the received model's features.

    loss = beta / 2 mean_n (cos(f_n, m_y) - 1)^2 + (1 - beta) mean_nj (f_nj - g_nj)^2

with m_c the columns of a fixed simplex, which is also the classifier (``network.head="simplex"``), f the network's
features and g the features of the received model in evaluation mode. There is no cross-entropy, and class counts are
not used.

Kim et al., "FedDr+: Stabilizing Dot-regression with Global Feature Distillation for Federated Learning" (2024),
following the released code: beta 0.9. Gradients are small; its learning rates are 0.35 (VGG11) and 5 (MobileNet).
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import UserError
from fedjax_collapse.losses import masked_mean
from fedjax_collapse.methods.base import FromReceived, LocalView, Setup, Term
from fedjax_collapse.methods.classifier._simplex import check_simplex
from fedjax_collapse.schema.options import Fraction


class FedDrPlus(FromReceived):
    """Dot regression and feature distillation.

    Args:
        beta: weight of the dot regression, 0.9 in the released code; the distillation has ``1 - beta``.
    """

    beta: Fraction = 0.9

    def check_with(self, setup: Setup) -> None:
        simplex = check_simplex("FedDrPlus", setup.model, "simplex")
        if not simplex.normalize or simplex.name != "head":
            raise UserError('FedDrPlus: expected cosines of the features as logits; set network.head="simplex"')

    def task(self, view: LocalView) -> jax.Array:
        mask = view.batch.mask
        cosines = jnp.take_along_axis(view.outputs.logits, view.batch.labels[:, None], axis=1)[:, 0]
        return self.beta / 2 * masked_mean((jnp.where(mask, cosines, 1) - 1) ** 2, mask)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        keep = view.batch.mask[:, None]
        difference = jnp.where(keep, view.outputs.features - view.frozen["received"].features, 0)
        return {"distillation": Term(1 - self.beta, masked_mean(jnp.mean(difference**2, axis=1), view.batch.mask))}
