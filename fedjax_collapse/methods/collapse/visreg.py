"""VISReg: features with deviation 1, mean 0, and a normal distribution in any direction.

    loss = cross-entropy + strength * (scale + shape + centre)

Wu, Balestriero & Levine, "VISReg" (arXiv 2606.02572), a term for self-supervised learning. The paper's page has no
centre term, the released code has. No weight for supervised or federated training is published.
"""

import jax

from fedjax_collapse.losses.isotropy import sliced_normality
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Count, NonNegative, option


class VISReg(Regularizer):
    """Scale, shape and centre of the features' distribution.

    Args:
        strength: factor of all three terms; the default is our choice.
        directions: the number of random directions, new in each step; 256 is the default of the released code's class.
    """

    strength: NonNegative = 0.1
    directions: Count = option(256)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        features = view.outputs.features
        directions = jax.random.normal(view.key, (features.shape[1], self.directions), features.dtype)
        terms = sliced_normality(features, view.batch.mask, directions)
        return {name: Term(self.strength, value) for name, value in terms.items()}
