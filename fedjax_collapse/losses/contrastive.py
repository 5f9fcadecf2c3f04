"""Cosines of representations, between models and between views of an example.

* Li et al., "Model-Contrastive Federated Learning" (CVPR 2021): MOON.
* Chen & He, "Exploring Simple Siamese Representation Learning" (CVPR 2021): SimSiam.
* Grill et al., "Bootstrap Your Own Latent" (NeurIPS 2020): BYOL.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_collapse.core.records import Scalar
from fedjax_collapse.losses.shapes import Features, Mask, Value
from fedjax_collapse.losses.task_loss import masked_mean


def model_contrastive(
    features: Features, server_features: Features, previous_features: Features, mask: Mask, temperature: Scalar = 0.5
) -> Value:
    """Returns MOON's loss on the features of three models for the same rows, mean over the true rows.

    ``-log( exp(s_g/t) / (exp(s_g/t) + exp(s_p/t)) )`` with s_g, s_p the cosines with the server's and the previous
    features, each norm clipped from below at 1e-8 (as in PyTorch), and t the ``temperature``. The server's and the
    previous features are constants. Where they are equal, the loss is ln 2 and its gradient exactly 0.
    """
    keep = mask[:, None]
    server, previous = (jax.lax.stop_gradient(rows) for rows in (server_features, previous_features))
    rows, server, previous = (clipped_unit(jnp.where(keep, x, 0)) for x in (features, server, previous))
    difference = jnp.sum(rows * (previous - server), axis=1)  # s_p - s_g
    return masked_mean(jax.nn.softplus(difference / temperature), mask)


def view_similarity(
    predictions: Float[Array, "views batch features"], targets: Float[Array, "views batch features"], mask: Mask
) -> Value:
    """Returns the mean over views and true rows of ``cos(p_i, h_j)``, from -1 to 1; j is the view after i.

    Of two views j is the other one, of a single view the same. SimSiam's loss is minus this, BYOL's 4 - 4 times this.
    """
    similarities = cosines(predictions, jnp.roll(targets, -1, axis=0))
    return jnp.mean(jnp.stack([masked_mean(of_view, mask) for of_view in similarities]))


def cosines(rows: Float[Array, "*shape features"], others: Float[Array, "*shape features"]) -> Float[Array, "*shape"]:
    """Returns the cosine of each row with the other one, norms clipped from below at 1e-8."""
    return jnp.sum(clipped_unit(rows) * clipped_unit(others), axis=-1)


def clipped_unit(rows: Float[Array, "*shape features"], shortest: float = 1e-8) -> Float[Array, "*shape features"]:
    """Divides each row by its norm, or by ``shortest`` if that is greater."""
    return rows / jnp.sqrt(jnp.maximum(jnp.sum(rows**2, axis=-1, keepdims=True), shortest**2))
