"""FedGELA: one fixed simplex for all, that each client trains on as stretched by its own class shares.

    loss = cross-entropy of logits Phi_c s f / ||f|| . m_c / temperature,   Phi_c = C n_c / N_k

with m_c the columns of the simplex (``nn/heads``), n_c of the client's N_k examples in class c: a class that it lacks
has logit 0 and stays in the softmax. Fan et al., "Federated Learning with Bilateral Curation for Partially
Class-Disjoint Data" (NeurIPS 2023). The server's model is evaluated with Phi = 1.

Length 1 and a trained s are another group's code, by ``network.head="etf"``. The authors' has neither: features after
Linear, ReLU, Linear and BatchNorm times the simplex, at a temperature of 0.2 (1e-5 in its README), of which all but the
BatchNorm is ``network=dict(projector="moon", head=dict(name="simplex", normalize=False))`` and ``temperature=0.2``; as
released it does not run. Its personal models predict with their client's Phi; here personal models are those of private
parts, without it.
"""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core.options import Positive
from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.methods._simplex import check_simplex
from fedjax_collapse.methods.base import LocalView, Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining


@struct.dataclass
class FedGELA(Method):
    """Cross-entropy on a simplex whose corners are as long as the client's classes are frequent."""

    temperature: Positive = 1.0

    def check_with(self, training: LocalTraining, private: str, model: Model) -> None:
        check_simplex("FedGELA", model)

    def task(self, view: LocalView) -> jax.Array:
        stretch = self.stretch(view.class_counts, view.outputs.logits.dtype)
        logits = view.outputs.logits * (stretch / self.temperature)
        return cross_entropy(logits, view.batch.labels, view.batch.mask)

    def stretch(self, counts: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Phi [1, classes]: 1 for equal counts, 0 for a class without examples."""
        shares = counts.astype(dtype) / jnp.maximum(jnp.sum(counts), 1).astype(dtype)
        return (len(counts) * shares)[None]
