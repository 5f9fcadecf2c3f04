"""VICReg's variance and covariance terms: features should vary over the batch, without covarying.

    loss = cross-entropy + variance * mean_j max(0, gamma - std_j) + covariance * sum_{i != j} C_ij^2 / d

Bardes et al., "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning" (ICLR 2022). Its
third term compares two views of an image; here cross-entropy replaces it, and the defaults keep the published ratio
25 : 25 : 1. FedUV's classifier variance is a related term.
"""

from fedjax_collapse.losses import vicreg_covariance, vicreg_variance
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, Positive


class VICReg(Regularizer):
    """Variance and covariance of the batch's features.

    Args:
        variance: strength lambda_v of the variance term.
        covariance: strength lambda_c of the covariance term; the published ratio is 25 to 1.
        gamma: target standard deviation of each feature.
        eps: added to the variances under the root.
    """

    strengths = ("variance", "covariance")
    variance: NonNegative = 1.0
    covariance: NonNegative = 0.04
    gamma: NonNegative = 1.0
    eps: Positive = 1e-4

    def penalty(self, view: LocalView) -> dict[str, Term]:
        features, mask = view.outputs.features, view.batch.mask
        return {
            "variance": Term(self.variance, vicreg_variance(features, mask, self.gamma, self.eps)),
            "covariance": Term(self.covariance, vicreg_covariance(features, mask)),
        }
