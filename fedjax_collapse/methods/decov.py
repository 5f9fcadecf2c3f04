"""DeCov: no two features should covary over the batch.

    loss = cross-entropy + strength * 1/2 sum_{i != j} C_ij^2,        C: covariance of the features, divisor N

Cogswell et al., "Reducing Overfitting in Deep Networks by Decorrelating Representations" (ICLR 2016); FedDecorr
compares with it, at a strength that it does not name. Unlike correlations, covariances can be made small by making
features small, and the sum grows with the square of their number.
"""

from flax import struct

from fedjax_collapse.core.options import NonNegative
from fedjax_collapse.losses.covariance import decov
from fedjax_collapse.methods.base import LocalView, Regularizer, Term


@struct.dataclass
class DeCov(Regularizer):
    """Half the sum of the squared covariances of different features; the default ``strength`` is ours."""

    strength: NonNegative = 0.01

    def penalty(self, view: LocalView) -> dict[str, Term]:
        return {"covariance": Term(self.strength, decov(view.outputs.features, view.batch.mask))}
