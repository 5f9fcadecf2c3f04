"""Structured DeCov: penalise covariances between features of different groups, not of the same group.

    loss = cross-entropy + strength * 1/2 ( sum_{different groups} C_ij^2 - eta sum_{i != j, same group} C_ij^2 )

Xiong et al., "Regularizing Deep Convolutional Neural Networks with a Structured Decorrelation Constraint" (ICDM 2016).
The formula is our interpretation of its abstract, the only part accessible to us (``losses/covariance.py``). FedDecorr
compares with it, without stating groups or strength.
"""

from fedjax_collapse.losses.covariance import structured_decov
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import Count, NonNegative, option


class StructuredDeCov(Regularizer):
    """Squared covariances between contiguous groups of features, minus ``eta`` times those within.

    Args:
        strength: factor lambda; our choice.
        eta: weight of the covariances within a group, which are rewarded.
        num_groups: number of groups, a divisor of the number of features; with one feature per group it is DeCov.
    """

    strength: NonNegative = 0.01
    eta: NonNegative = 0.0
    num_groups: Count = option(16)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        value = structured_decov(view.outputs.features, view.batch.mask, self.num_groups, self.eta)
        return {"covariance": Term(self.strength, value)}
