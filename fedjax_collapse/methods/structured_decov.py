"""Structured DeCov: features of different groups should not covary; those of one group may.

    loss = cross-entropy + strength * 1/2 ( sum_{different groups} C_ij^2 - eta sum_{i != j, same group} C_ij^2 )

Xiong et al., "Regularizing Deep Convolutional Neural Networks with a Structured Decorrelation Constraint" (ICDM 2016).
This is our reading of its abstract, the only part open to us (``losses/covariance.py``); FedDecorr, which compares with
it, names neither groups nor strength.
"""

from flax import struct

from fedjax_collapse.core.options import Count, NonNegative, option
from fedjax_collapse.losses.covariance import structured_decov
from fedjax_collapse.methods.base import LocalView, Regularizer, Term


@struct.dataclass
class StructuredDeCov(Regularizer):
    """Squared covariances between ``num_groups`` contiguous groups of features, less ``eta`` times those within.

    The number of features must be a multiple of ``num_groups``. The default ``strength`` is ours.
    """

    strength: NonNegative = 0.01
    eta: NonNegative = 0.0
    num_groups: Count = option(16)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        value = structured_decov(view.outputs.features, view.batch.mask, self.num_groups, self.eta)
        return {"covariance": Term(self.strength, value)}
