"""Weak-SIGReg: the covariance of a batch's features should be the identity.

    loss = cross-entropy + strength * ||C - I||_F

The repository kreasof-ai/sigreg; no paper was accessible to us. Wide features are first multiplied by a random matrix,
new in each step. The factor 1 - strength that cross-entropy has there is left out here. In contrast to ``vicreg``,
variances above 1 are penalised as well.
"""

import jax

from fedjax_collapse.losses.isotropy import identity_distance
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Count, NonNegative, option


class WeakSIGReg(Regularizer):
    """Distance of the features' covariance from the identity.

    Args:
        strength: factor of the term.
        width: of more features than this, the covariance is of so many random combinations.
    """

    strength: NonNegative = 0.1
    width: Count = option(64)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        features, sketch = view.outputs.features, None
        if (dim := features.shape[1]) > self.width:
            sketch = jax.random.normal(view.key, (dim, self.width), features.dtype) / dim**0.5
        return {"covariance": Term(self.strength, identity_distance(features, view.batch.mask, sketch))}
