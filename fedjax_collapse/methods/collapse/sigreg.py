"""SIGReg: the features of a batch should look like draws from a standard normal distribution, in any direction.

    loss = cross-entropy + strength * characteristic_distance(features, random directions)

Balestriero & LeCun, "LeJEPA" (arXiv 2511.08544), a term for self-supervised learning. The supervised training of the
repository kreasof-ai/sigreg has it at every residual block (here ``levels="all"``), and multiplies cross-entropy by 1 -
strength, which is left out here. No federated use was known to us in November 2026.
"""

import jax

from fedjax_collapse.losses.isotropy import POINTS, characteristic_distance
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Count, NonNegative, option


class SIGReg(Regularizer):
    """Distance of the features' distribution from the standard normal one.

    Args:
        strength: factor of the term; the default is that of kreasof-ai/sigreg.
        directions: the number of random directions, new in each step; in the released code 256 or 1024, here that of
            kreasof-ai/sigreg.
        points: where the characteristic functions are compared: as in the released code, or in the paper.
        levels: where the term is computed: at every level of the network (``all``, their mean), or at the classifier's
            input (``last``).
    """

    strength: NonNegative = 0.01
    directions: Count = option(64)
    points: str = option("code", choices=tuple(POINTS))
    levels: str = option("last", choices=("all", "last"))

    @property
    def needs(self) -> tuple[str, ...]:
        return ("levels",) if self.levels == "all" else ()

    def penalty(self, view: LocalView) -> dict[str, Term]:
        layers = view.outputs.levels if self.levels == "all" else (view.outputs.features,)
        values = []
        for key, layer in zip(jax.random.split(view.key, len(layers)), layers, strict=True):
            directions = jax.random.normal(key, (layer.shape[1], self.directions), layer.dtype)
            values.append(characteristic_distance(layer, view.batch.mask, directions, self.points))
        return {"normality": Term(self.strength, sum(values) / len(values))}
