"""FedU2: projections as uniform on the sphere as random ones, and a server step that suits all clients alike.

    loss = SimSiam's or BYOL's + strength * (F(h_1) + F(h_2));    params <- params - rate * sum_i lambda_i g_i

Liao et al., "Rethinking the Representation in Federated Unsupervised Learning with Non-IID Data" (CVPR 2024). Its
optimal transport was not accessible to us; these are the forms of the released code, which compares random projections
on tangent planes (``losses.tangent_distance``). It sums over as many tangent points as the batch has rows and divides
by six. Here there are six, and their mean times rows / 6 has the same expectation. The released code does not scale
projections to norm 1, for which the tangent planes are meant.

``server="equal"`` is its aggregation: ``g_i = 2 (params - params_i) / ||params - params_i||`` over all params, and the
lambda, not negative with sum 1, that minimise ``||sum_i lambda_i g_i||``. The length of the step does not depend on how
far clients have moved. Clients that have not moved do not count. With two clients the released code takes weights by
size.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses import tangent_distance
from fedjax_collapse.losses.contrastive import clipped_unit
from fedjax_collapse.methods.base import CohortView, LocalView, Method, Term
from fedjax_collapse.nn.task import siamese_outputs
from fedjax_collapse.optim.combination import smallest_combination
from fedjax_collapse.schema.options import NonNegative, Positive, only_with, option

_TANGENTS = 6  # and directions on each


class FedU2(Method):
    """Distance of the projections from random points on the sphere, and the server's step.

    Args:
        strength: factor of the distance.
        scaled: whether projections are scaled to norm 1, unlike in the released code.
        server: the ``mean`` of the uploads, or the direction that is ``equal`` for all clients.
        rate: length of that step, 0.1 or 8 in the released code.
    """

    needs = ("views",)

    strength: NonNegative = 0.01
    scaled: bool = option(True)
    server: str = option("mean", choices=("mean", "equal"))
    rate: Positive = only_with(0.1, server="equal")

    @property
    def unused(self) -> tuple[str, ...]:
        return ("combine_uploads",) if self.server == "mean" else ()

    def penalty(self, view: LocalView) -> dict[str, Term]:
        projections, _ = siamese_outputs(view.outputs)
        mask, shape, dtype = view.batch.mask, projections.shape[1:], projections.dtype

        def distance(projected, key):
            keys = jax.random.split(key, 3)
            points, tangents = (
                clipped_unit(jax.random.normal(key, (rows, shape[1]), dtype))
                for key, rows in zip(keys, (shape[0], _TANGENTS), strict=False)
            )
            directions = jax.random.normal(keys[2], (_TANGENTS, shape[1]), dtype)
            return tangent_distance(projected, points, tangents, directions, mask)

        projections = clipped_unit(projections) if self.scaled else projections
        keys = jax.random.split(view.key, len(projections))
        total = sum(distance(*each) for each in zip(projections, keys, strict=True))
        return {"uniformity": Term(self.strength, total * jnp.sum(mask) / _TANGENTS)}

    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        rows = jnp.concatenate([leaf.reshape(len(view.id), -1) for leaf in jax.tree.leaves(stacked)], axis=1)
        norms = jnp.sqrt(jnp.sum(rows**2, axis=1))
        has_moved = view.counted & (norms > 0)
        inverse = jnp.where(has_moved, 2 / jnp.where(has_moved, norms, 1), 0)
        rows = rows * inverse[:, None]
        weights = smallest_combination(jnp.matmul(rows, rows.T, precision="highest"), has_moved) * inverse
        return jax.tree.map(lambda leaf: self.rate * jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), stacked)
