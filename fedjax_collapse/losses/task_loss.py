"""Cross-entropy, and the mean over true rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def masked_mean(values: Float[Array, " batch"], mask: Bool[Array, " batch"]) -> Float[Array, ""]:
    """Returns the mean over the true rows; 0 if there are none."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def cross_entropy(
    logits: Float[Array, "batch classes"], labels: Int[Array, " batch"], mask: Bool[Array, " batch"]
) -> Float[Array, ""]:
    """Returns the mean over the true rows of ``-log softmax(logits)[label]``, in nats."""
    log_probabilities = jax.nn.log_softmax(jnp.where(mask[:, None], logits, 0))
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    return masked_mean(losses, mask)
