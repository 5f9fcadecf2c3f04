"""GH-OFL: Gaussian classifiers from the moments of each class's features of a network that is not trained.

    clients       counts n_c, sums of features of each class, and for each class sum f^2 (naive_bayes) or sum f f^T
                  (qda), or for all classes together sum f f^T (lda)
    naive_bayes   log p_c - sum_j ((f_j - mu_cj)^2 / v_cj + log v_cj) / 2,   v_c = max(variance, 1e-6), divisor n_c
    lda           mu_c^T S^-1 f - mu_c^T S^-1 mu_c / 2 + log p_c,   S the covariance within classes, divisor N - C
    qda           log p_c - (f - mu_c)^T S_c^-1 (f - mu_c) / 2 - log det S_c / 2,   S_c of class c, divisor n_c - 1

Turazza et al., "GH-OFL" (ICLR 2026), with the means mu_c and the shares p_c = n_c / N of all clients' examples. S and
S_c are shrunk, ``(1 - a) S + a (tr S / d) I + 1e-6 I``, and S_c is S for a class with one example. All clients report
once, before the first round, on the initial network in evaluation mode. Logits of naive_bayes and qda are quadratic in
the features: the network has the head ``nn.heads.Quadratic``, for naive_bayes with ``diagonal=True``. lda is
``FedCGS(covariance="within")`` with ``shrink``, and has a linear head.

The released code sums in float64; here sums are in float32, unless JAX's default is float64, of features minus those of
an input of zeros (for lda as in ``_closed_form.py``). It adds 1e-6 twice for lda, and predicts a class without examples
as if its mean were 0; here the bias of this class is -1e9. That clients may train the head afterwards is ours. The
paper's Fisher subspace, with a head trained on samples in it, and its low-rank residual are left out.

A client sends C d^2 numbers for qda, 26 million for C = 100 and d = 512, and reveals the features of a class of which
it has one example.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, Variables
from fedjax_collapse.methods._linear_head import check_head, with_params
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.methods.classifier.ccvr import ClassSums, class_moments, class_report
from fedjax_collapse.methods.one_shot._closed_form import FLOOR, ClosedForm, Sums, log_shares, shrunk, times
from fedjax_collapse.methods.one_shot.fedcgs import FedCGS
from fedjax_collapse.nn.heads import Quadratic
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import Fraction, option


class GHOFL(ClosedForm):
    """Gaussians of the classes.

    Args:
        classifier: Gaussians of independent features (``naive_bayes``), with a common covariance (``lda``), or with a
            covariance of each class (``qda``).
        shrink: weight a of the multiple of the identity in a covariance, without effect in ``naive_bayes``; in the
            released code 0.05 for ``lda``, and 0.1 for ``qda`` (0.05 for flowers).
        finetune: whether clients then train the network.
    """

    classifier: str = option("qda", choices=("naive_bayes", "lda", "qda"))
    shrink: Fraction = 0.1
    finetune: bool = option(False)
    not_sent = ("measured/shift",)

    @property
    def needs(self) -> tuple:
        return ("classes",) if self.classifier == "lda" else ("classes", Quadratic)

    def check_head(self, model: Model) -> None:
        if self.classifier == "lda":
            return super().check_head(model)
        axes = 1 if self.classifier == "naive_bayes" else 2
        check_head("GHOFL", model, lambda c, d: {"mean": (c, d), "root": (c, *[d] * axes), "bias": (c,)})

    def measure(self, view: FinishView) -> PyTree:
        match self.classifier:
            case "lda":
                return super().measure(view)
            case "qda":
                return class_report(view)
        return class_report(view, "bc,bi,bi->ci")

    def solve(self, sums: Sums) -> tuple[jax.Array, jax.Array]:
        return FedCGS("within", self.shrink).solve(sums)

    def apply(self, variables: Variables, measured: PyTree, model: Model) -> Variables:
        if self.classifier == "lda":
            return super().apply(variables, measured, model)
        make = _independent if self.classifier == "naive_bayes" else self._dependent
        mean, root, log_determinant = make(measured)
        bias = log_shares(measured.counts) - log_determinant / 2
        return with_params(variables, model, {"mean": mean, "root": root, "bias": bias})

    def _dependent(self, total):
        """Returns means [classes, d], inverse roots [classes, d, d] and log-determinants [classes] of covariances."""
        means, own = class_moments(total)
        degrees = jnp.maximum(total.counts - 1, 0)[:, None, None]
        common = jnp.sum(degrees * own, axis=0) / jnp.maximum(jnp.sum(degrees), 1)
        covariances = shrunk(jnp.where(degrees > 0, own, common), self.shrink)
        return means, *jax.lax.map(_inverse_root, covariances)  # one by one, as in CCVR


def _independent(total: ClassSums):
    """Returns means [classes, d], inverse deviations [classes, d] and log-determinants [classes] of variances."""
    counts = jnp.maximum(total.counts, 1)[:, None]
    means = total.sums / counts
    variances = jnp.maximum(total.products / counts - means**2, FLOOR)
    return total.shift + means, 1 / jnp.sqrt(variances), jnp.sum(jnp.log(variances), axis=1)


def _inverse_root(covariance):
    """Returns the symmetric inverse root, and the log-determinant."""
    values, vectors = jnp.linalg.eigh(covariance)
    values = jnp.maximum(values, FLOOR)
    return times(vectors / jnp.sqrt(values), vectors.T), jnp.sum(jnp.log(values))
