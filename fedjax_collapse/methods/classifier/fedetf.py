"""FedETF: all clients share one fixed simplex classifier, which heterogeneous data cannot bias.

    loss = balanced softmax of logits s f / ||f|| @ M, mean_n [ logsumexp_c(logit_nc + log n_c) - (logit_ny + log n_y) ]

with f the projected features, s a trained scale and M the simplex (``nn/heads/etf.py``: ``network.head="etf"``), and
n_c the client's examples of class c. Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated
Learning with Synthetic and Fixed Classifier" (ICCV 2023). Predictions use the plain logits.

As in the released code, a class that the client lacks is treated as if it had one example; ``vacant="exclude"`` removes
it from the softmax (another group's code). The paper's last stage, in which each client alternately adapts its
classifier and its projector after the last round, is not implemented.

The released code creates one optimizer per client for the whole run, so momentum persists over rounds; this is
``LocalTraining(momentum_reset=False)``. Its CNN has a projector from 64 features to the 64 dimensions of the simplex,
and an initial scale of 10: ``network.head=dict(name="etf", projector_dim=64, scale=10.0)``.
"""

import jax

from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.losses.calibrated import balanced_cross_entropy
from fedjax_collapse.methods.base import LocalView, Method, Setup
from fedjax_collapse.methods.classifier._simplex import check_simplex
from fedjax_collapse.schema.options import option


class FedETF(Method):
    """Balanced softmax on a fixed simplex.

    Args:
        balanced: whether class counts shift the logits; False is plain cross-entropy.
        vacant: missing classes count as one example (``floor_one``, the released code), or are excluded from the
            softmax (``exclude``).
    """

    balanced: bool = option(True)
    vacant: str = option("floor_one", choices=("floor_one", "exclude"))

    def check_with(self, setup: Setup) -> None:
        check_simplex("FedETF", setup.model)

    def task(self, view: LocalView) -> jax.Array:
        rows = view.outputs.logits, view.batch.labels, view.batch.mask
        if not self.balanced:
            return cross_entropy(*rows)
        return balanced_cross_entropy(*rows, view.class_counts, vacant=self.vacant)
