"""FedGELA: one fixed simplex for all clients, which each client rescales by its class frequencies.

    loss = cross-entropy of logits Phi_c s f / ||f|| . m_c / temperature,   Phi_c = C n_c / N_k

with m_c the columns of the simplex (``nn/heads``), and n_c the number of class c among the client's N_k examples. A
class that the client lacks has logit 0 and stays in the softmax. Fan et al., "Federated Learning with Bilateral
Curation for Partially Class-Disjoint Data" (NeurIPS 2023). The server's model is evaluated with Phi = 1.

Normalised features and a trained s (``network.head="etf"``) follow another group's code. The authors' code has neither:
it multiplies features after Linear, ReLU, Linear and BatchNorm by the simplex, at a temperature of 0.2 (1e-5 in its
README). All of this except the BatchNorm is
``network=dict(projector="moon", head=dict(name="simplex", normalize=False))`` and ``temperature=0.2``; as released, the
code does not run. Its personal models predict with their client's Phi; here personal models are models with private
parts, without Phi.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.methods.base import LocalView, Method, Setup
from fedjax_collapse.methods.classifier._simplex import check_simplex
from fedjax_collapse.schema.options import Positive


class FedGELA(Method):
    """Cross-entropy on a simplex whose vertices are scaled by the client's class frequencies.

    Args:
        temperature: T, which divides the logits in training; 0.2 in the authors' code.
    """

    temperature: Positive = 1.0

    def check_with(self, setup: Setup) -> None:
        check_simplex("FedGELA", setup.model)

    def task(self, view: LocalView) -> jax.Array:
        stretch = self.stretch(view.class_counts, view.outputs.logits.dtype)
        logits = view.outputs.logits * (stretch / self.temperature)
        return cross_entropy(logits, view.batch.labels, view.batch.mask)

    def stretch(self, counts: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Returns Phi [1, classes]: 1 for equal counts, 0 for a class without examples."""
        shares = counts.astype(dtype) / jnp.maximum(jnp.sum(counts), 1).astype(dtype)
        return (len(counts) * shares)[None]
