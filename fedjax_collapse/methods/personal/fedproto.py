"""FedProto: clients keep their networks, and exchange the mean features of each class.

    loss    task + strength * mean_{n, d} (z_nd - c_{y_n, d})^2
    client  sends p_kc, the mean of its features z of class c
    server  c_c <- sum_k a_kc p_kc / sum_k a_kc       over the cohort's clients that have class c

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients" (AAAI 2022). A row whose class has no
prototype adds 0 but counts in the mean over the batch, as in the released code; in the first round there are none. A
class that no client of the cohort has loses its prototype. A client predicts the class of the nearest prototype; while
there is none, as before the first round, its head predicts. Logits are minus the squared distances; for classes without
prototype they are finite and lower by a thousand.

    paper           a_kc = examples of class c at client k; features after training; nearest of all prototypes
    released code   average="clients", collected="last_epoch", prediction="own"
    PFLlib          average="clients", collected="all_epochs", prediction="all"
    FL-bench        prediction="head"

Features that are collected during training come from before each step, with BatchNorm in training mode. PFLlib counts
everything as wrong before there are prototypes; the released code prints running means over clients as accuracies. The
term is a mean over the features, so a strength for squared distances is multiplied by their number.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree
from fedjax_collapse.losses import class_sums
from fedjax_collapse.methods._prototypes import Prototypes, WithPrototypes, local_class_sums
from fedjax_collapse.methods.base import ClientView, FinishView, LocalView, RoundView
from fedjax_collapse.schema.options import NonNegative, option

_BELOW = 1e3  # how far the logits of classes without prototype are below the others


class FedProto(WithPrototypes):
    """Private networks, and prototypes of the classes that all share.

    Args:
        strength: factor lambda of the second term; 1 in the paper, 0.1 on CIFAR-10.
        average: weights of the clients' prototypes: their ``examples`` of the class, or equal (``clients``).
        collected: features whose mean is sent: of the ``trained`` network in evaluation mode, or of the training steps
            in the ``last_epoch`` or ``all_epochs``.
        prediction: class of the nearest of ``all`` prototypes, of the nearest of the client's ``own`` classes, or of
            the ``head``.
    """

    private = "all"

    strength: NonNegative = 1.0
    average: str = option("examples", choices=("examples", "clients"))
    collected: str = option("trained", choices=("trained", "last_epoch", "all_epochs"))
    prediction: str = option("all", choices=("all", "own", "head"))

    @property
    def unused(self) -> tuple[str, ...]:
        return ("init_carry", "carry") if self.collected == "trained" else ()

    def init_carry(self, view: RoundView) -> PyTree:
        sums = jnp.zeros_like(view.shared.means)
        return jnp.zeros_like(view.client.size), (sums, sums[:, 0])  # steps, and class_sums

    def carry(self, view: LocalView) -> PyTree:
        step, sums = view.carry
        if self.collected == "last_epoch":
            is_first = step % view.training.steps_per_epoch(view.client.size) == 0
            sums = jax.tree.map(lambda total: jnp.where(is_first, 0, total), sums)
        of_batch = class_sums(view.outputs.features, view.batch.labels, view.batch.mask, len(view.shared.valid))
        return step + 1, jax.tree.map(jnp.add, sums, of_batch)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        if self.collected == "trained":
            sums, counts = local_class_sums(view, len(view.shared.valid))
        else:
            _, (sums, counts) = view.carry
        weights = jnp.where(counts > 0, view.class_counts if self.average == "examples" else 1, 0)
        return view.memory, (weights[:, None] * sums / jnp.maximum(counts, 1)[:, None], weights.astype(sums.dtype))

    def combine(self, shared: Prototypes, report: PyTree) -> Prototypes:
        sums, weights = report
        return Prototypes(sums / jnp.maximum(weights, 1)[:, None], weights > 0)

    def predict(self, outputs: Outputs, view: ClientView) -> jax.Array:
        if self.prediction == "head":
            return outputs.logits
        means, valid = view.shared
        candidates = valid & (view.class_counts > 0) if self.prediction == "own" else valid
        logits = -jnp.sum((outputs.features[:, None] - means) ** 2, axis=2)
        lowest = jnp.min(jnp.where(candidates, logits, jnp.inf), axis=1, keepdims=True)
        logits = jnp.where(candidates, logits, 2 * lowest - _BELOW)
        return jnp.where(jnp.any(candidates), logits, outputs.logits)
