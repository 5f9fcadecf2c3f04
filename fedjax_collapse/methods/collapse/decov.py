"""DeCov: penalise covariances between the features over the batch.

    loss = cross-entropy + strength * 1/2 sum_{i != j} C_ij^2,        C: covariance of the features, divisor N

Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations" (ICLR 2016). FedDecorr
compares with it, without stating a strength. Unlike correlations, covariances can be reduced by shrinking the features,
and the sum grows with the square of their number.
"""

from fedjax_collapse.losses.covariance import decov
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative


class DeCov(Regularizer):
    """Half the sum of the squared covariances of distinct features.

    Args:
        strength: factor lambda, our choice; the penalty grows with the square of the number of features and the fourth
            power of their scale.
    """

    strength: NonNegative = 0.01

    def penalty(self, view: LocalView) -> dict[str, Term]:
        return {"covariance": Term(self.strength, decov(view.outputs.features, view.batch.mask))}
