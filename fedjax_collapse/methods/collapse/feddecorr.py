"""FedDecorr: decorrelate the features of each local batch, so that local training does not collapse them.

    loss = cross-entropy + strength * correlation_frobenius(features)

Shi et al., ICLR 2023 (eq. 9, algorithm 1; beta = 0.1) and TPAMI 2023. The default is the released code,
``variant="official"``, for whose scale the strength 0.1 was published. With ``variant="paper"``, exactly eq. 9, the
same effect requires a strength 62 times as large at N = 64 and d = 1280 (``losses/correlation.py``).
"""

from fedjax_collapse.losses.correlation import VARIANTS, correlation_frobenius
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative, option


class FedDecorr(Regularizer):
    """Squared Frobenius norm of the correlation matrix of the batch's features.

    Args:
        strength: factor beta; 0.1 is published for ``official``, 0.05 in its CIFAR-100 scripts.
        variant: scale of the penalty: of the released code (``official``), eq. 9 (``paper``), or algorithm 1
            (``pseudocode``), ``(N - 1)^2 / N^2`` times eq. 9.
        eps: added to the variance of each feature.
    """

    strength: NonNegative = 0.1
    variant: str = option("official", choices=VARIANTS)
    eps: NonNegative = 1e-8

    def penalty(self, view: LocalView) -> dict[str, Term]:
        value = correlation_frobenius(view.outputs.features, view.batch.mask, self.variant, self.eps)
        return {"correlation": Term(self.strength, value)}
