"""FedNTD: the local model should keep what the received one says of the classes that are not the true one."""

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_collapse import Regularizer, Term, masked_mean


@struct.dataclass
class FedNTD(Regularizer):
    """KL divergence of the not-true distributions, at a temperature."""

    strength: float = 1.0
    temperature: float = 1.0

    def frozen(self, server, shared, memory):
        return {"received": server}

    def penalty(self, view):
        labels, tau = view.batch.labels, self.temperature
        is_true = jnp.arange(view.outputs.logits.shape[1]) == labels[:, None]

        def log_not_true(logits):
            return jax.nn.log_softmax(jnp.where(is_true, -1e30, logits / tau))

        teacher = log_not_true(jax.lax.stop_gradient(view.frozen["received"].logits))
        student = log_not_true(view.outputs.logits)
        divergence = jnp.sum(jnp.where(is_true, 0, jnp.exp(teacher) * (teacher - student)), axis=1)
        return {"not_true": Term(self.strength * tau**2, masked_mean(divergence, view.batch.mask))}
