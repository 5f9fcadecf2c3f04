"""FedLC: lower each logit by a margin that is larger for classes with fewer of the client's examples.

    loss = cross-entropy of f_c - tau n_c^(-1/4),     n_c: the client's examples of class c

It replaces plain cross-entropy (``losses/calibrated.py``). Zhang et al., "Federated Learning with Label Distribution
Skew via Logits Calibration" (ICML 2022). The authors released no code. The paper's softmax is over the classes other
than the row's label, so the loss has no lower bound (``denominator="others"``); all third-party codes use the usual
softmax, which is the default here.

The margin of a class that the client lacks is infinite. FedVLS's code excludes such a class from the softmax, which is
the default here; FL-bench sets its count to 1e-8 (``vacant="floor"``); PFLlib uses the counts of all clients together
(``counts="global"``), which the server adds up before the first round. tau is 0.1 to 1 in these codes, and 0.5 in
FedVLS's table. ``task_loss`` in the metrics is this loss; accuracies and the loss of the evaluated model use the plain
logits.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.losses import calibrated_cross_entropy
from fedjax_collapse.losses.calibrated import CALIBRATED_VACANT, DENOMINATORS
from fedjax_collapse.methods.base import FinishView, LocalView, Method
from fedjax_collapse.schema.options import NonNegative, option


class FedLC(Method):
    """Cross-entropy of logits calibrated by the class counts of the client or of all clients (``counts``).

    Args:
        tau: factor of the margins; 0.1 to 1 in third-party code, 0 is plain cross-entropy.
        denominator: classes in the softmax: ``all`` (third-party code), or all but the row's label (``others``, the
            paper).
        vacant: classes without examples are excluded from the softmax (``exclude``), or count 1e-8 (``floor``).
        counts: class counts of the client (``local``) or of all clients (``global``).
    """

    needs = ("classes",)
    tau: NonNegative = 0.5
    denominator: str = option("all", choices=DENOMINATORS)
    vacant: str = option("exclude", choices=CALIBRATED_VACANT)
    counts: str = option("local", choices=("local", "global"))

    when_measured = "start"

    @property
    def unused(self) -> tuple[str, ...]:
        return ("measure", "after_round") if self.counts == "local" else ()

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jnp.zeros(shapes.logits.shape[1], jnp.int32) if self.counts == "global" else ()

    def task(self, view: LocalView) -> jax.Array:
        counts = view.shared if self.counts == "global" else view.class_counts
        labels, mask = view.batch.labels, view.batch.mask
        return calibrated_cross_entropy(
            view.outputs.logits, labels, mask, counts, self.tau, self.denominator, self.vacant
        )

    def measure(self, view: FinishView) -> jax.Array:
        return view.class_counts

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: jax.Array) -> jax.Array:
        return measured
