"""FedPAC: private heads that the server combines for each client, on features that are pulled to shared prototypes.

    head    trained first, on the received body; then the body, on
    loss    task + strength * mean_{n, d} (z_nd - c_{y_n, d})^2,     c the server's prototypes
    server  averages bodies, c_c <- sum_k n_kc p_kc / sum_k n_kc, and gives each client of the cohort
    head_i <- sum_j a_ij head_j,     a_i = argmin over the simplex of  a' (diag V + D^i) a

with the statistics that clients compute of the features of the RECEIVED body on their N_k examples, where p_kc mu_kc is
the share of class c times its mean:

    h_kc = p_kc mu_kc      V_k = (mean |z|^2 - sum_c |h_kc|^2) / N_k      D^i_jl = sum_c <h_ic - h_jc, h_ic - h_lc>

Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier Collaboration" (ICLR 2023). Weights
below 0.001 are set to 0 and the others scaled to sum 1, as in the released code. A client outside the cohort, or whose
upload is lost, keeps its head. In the first round there are no prototypes. Rows whose class has none add 0 but count in
the mean; the prototype of a class that the cohort lacks stays as it was.

The released code has a learning rate of 0.1 for the head and 0.01 for the body, momentum 0.5, weight decay 0.0005 and
batches of 50; here all phases have those of ``training``. Without a prototype the code takes the client's own, and it
forgets prototypes of classes that the last cohort lacked. Its solver drops eigenvalues below 0.01 if rounding makes one
negative (the matrix is positive semidefinite); here none is dropped. PFLlib averages prototypes without weights
(``average="clients"``), has one epoch for the body, and combines heads with the weights of other clients, as it lists
heads and statistics in different orders. It combines clients one by one without copies of the heads, so that later
clients mix heads that are mixtures already, and does not rescale the remaining weights. FL-bench equals the released
code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.losses import class_sums
from fedjax_collapse.methods._prototypes import WithPrototypes, local_class_sums, no_prototypes
from fedjax_collapse.methods.base import DispatchView, FinishView, Setup
from fedjax_collapse.optim.combination import scaled_to_one, smallest_combination
from fedjax_collapse.optim.local_training import Phase
from fedjax_collapse.schema.options import NonNegative, Positive, option

_SMALLEST = 1e-3  # weight of a head


class Statistics(NamedTuple):
    """A client's statistics of the features of the body that it received last."""

    variance: jax.Array  # V_k
    means: jax.Array  # [classes, features], h_kc


class FedPAC(WithPrototypes):
    """Private heads that are combined for each client, and features that are pulled to prototypes.

    Args:
        strength: factor lambda of the second term.
        head_epochs: epochs of the head alone; with ``body_epochs`` they replace local training's.
        body_epochs: epochs of the body alone, afterwards.
        average: weights of the clients' prototypes: their ``examples`` of the class, or equal (``clients``).
    """

    dispatch_makes = ("private/*",)
    private = "head"

    strength: NonNegative = 1.0
    head_epochs: Positive = 1
    body_epochs: Positive = 5
    average: str = option("examples", choices=("examples", "clients"))

    def check_with(self, setup: Setup) -> None:
        if setup.private != self.private:
            raise UserError(f"FedPAC: private parts {setup.private}, expected the head, which the server combines")

    @property
    def phases(self) -> tuple[Phase, ...]:
        return Phase("head", self.head_epochs), Phase("body", self.body_epochs)

    def init_memory(self, variables: Variables, shapes: Outputs) -> Statistics:
        means = no_prototypes(shapes).means
        return Statistics(jnp.zeros((), means.dtype), means)

    def finish(self, view: FinishView) -> tuple[Statistics, PyTree]:
        num_classes, size = len(view.shared.valid), jnp.maximum(view.client.size, 1)

        def summarize(outputs, batch):
            sums, _ = class_sums(outputs.features, batch.labels, batch.mask, num_classes)
            return sums, jnp.sum(jnp.where(batch.mask[:, None], outputs.features, 0) ** 2)

        sums, squares = view.sum_over_data(view.server, summarize)
        means = sums / size
        statistics = Statistics(jnp.maximum(squares / size - jnp.sum(means**2), 0) / size, means)
        sums, counts = local_class_sums(view, num_classes)
        if self.average == "clients":
            sums, counts = sums / jnp.maximum(counts, 1)[:, None], (counts > 0).astype(counts.dtype)
        return statistics, (sums, counts)

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], Statistics]:
        weights = head_weights(view.memory, view.arrived)

        def combine(head):
            combined = jnp.tensordot(weights.astype(head.dtype), head, 1, precision="highest")
            return jax.vmap(jnp.where)(view.arrived, combined, head)

        return jax.tree.map(combine, view.private), view.memory


def head_weights(statistics: Statistics, arrived: jax.Array) -> jax.Array:
    """Returns the weights [clients, clients] of all heads in each client's.

    Args:
        statistics: of all clients, stacked.
        arrived: [clients] whose heads may be combined; the rows of the others have no meaning.
    """
    rows = statistics.means.reshape(len(arrived), -1)
    rows = rows - jnp.mean(rows, axis=0, where=arrived[:, None])  # which rounds less, and changes no difference
    rows = jnp.where(arrived[:, None], rows, 0)
    gram = jnp.matmul(rows, rows.T, precision="highest")

    def of_client(own, square):
        matrix = jnp.diag(statistics.variance) + square - own[:, None] - own + gram
        return smallest_combination(matrix, arrived)

    weights = jax.vmap(of_client)(gram, jnp.diag(gram))
    return scaled_to_one(jnp.where(weights < _SMALLEST, 0, weights))
