"""The loss from which FedDecorr is derived: equal singular values of the covariance of each local batch's features.

    loss = cross-entropy + strength * (1/d) sum_i (lambda_i - mean lambda)^2

Shi et al., ICLR 2023 and TPAMI 2023, eq. 7. The authors call it costly and publish no training with it, nor a strength;
``losses/singular.py`` costs as much as FedDecorr. It grows with the fourth power of the features' scale. On
standardised features it is d times FedDecorr's ``variant="paper"``, minus 1.
"""

from fedjax_collapse.losses.singular import singular_value_variance
from fedjax_collapse.methods.base import LocalView, Regularizer, Term
from fedjax_collapse.schema.options import NonNegative


class SingularValueVariance(Regularizer):
    """Variance of the singular values of the covariance of the batch's features.

    Args:
        strength: factor beta; our choice, by a trial on digits.
    """

    strength: NonNegative = 0.1

    def penalty(self, view: LocalView) -> dict[str, Term]:
        return {"singular": Term(self.strength, singular_value_variance(view.outputs.features, view.batch.mask))}
