"""FedProc: training moves from a loss on the server's class prototypes to plain cross-entropy.

    loss = a CE + (1 - a) P,     a = min(round / ramp_rounds, 1),     P = prototype_cross_entropy(features, prototypes)

Mu et al., "FedProc: Prototypical Contrastive Federated Learning on Non-IID data" (FGCS 2023). In the first round the
loss is CE. As a regularizer it is the term ``(1 - a) (P - CE)``, which requires cross-entropy as task loss: it cannot
be combined with a method that replaces the task loss.

The released code computes prototypes in training mode on augmented images without the last partial batch, which also
updates the running statistics; here they use all of the client's examples, by default in evaluation mode. Its network
also feeds the normalised features to the classifier, which is an option of a network, not of this loss. The temperature
is 1 in both.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses import cross_entropy, prototype_cross_entropy
from fedjax_collapse.methods._prototypes import MODES, WithPrototypes, local_class_sums
from fedjax_collapse.methods.base import Exclusion, FinishView, LocalView, Term
from fedjax_collapse.schema.options import Positive, option


class FedProc(WithPrototypes):
    """Prototype loss that is gradually replaced by cross-entropy.

    Args:
        ramp_rounds: rounds T until only cross-entropy is left; 100 in the released code.
        prototype_mode: whether BatchNorm uses running (``eval``) or batch statistics (``train``) for prototypes.
    """

    not_sent = ("shared/valid",)
    excludes = (
        Exclusion(("task",), "{own} ends with plain cross-entropy, but {other} trains another loss; leave one out"),
    )
    ramp_rounds: Positive = 100.0
    prototype_mode: str = option("eval", choices=MODES)

    def enabled(self) -> bool:
        return self.ramp_rounds > 1  # otherwise it is cross-entropy in every round

    def penalty(self, view: LocalView) -> dict[str, Term]:
        labels, mask = view.batch.labels, view.batch.mask
        prototype = prototype_cross_entropy(view.outputs.features, labels, mask, view.shared.means)
        difference = prototype - cross_entropy(view.outputs.logits, labels, mask)
        return {"prototype_minus_task": Term(self.prototype_weight(view.round), difference)}

    def prototype_weight(self, round: jax.Array) -> jax.Array:
        """Returns ``1 - a``: 0 in the first round, then decreasing from almost 1 to 0."""
        return jnp.where(round == 0, 0, 1 - jnp.minimum(round / self.ramp_rounds, 1))

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.memory, local_class_sums(view, len(view.shared.valid), self.prototype_mode)
