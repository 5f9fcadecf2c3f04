"""Losses that pull features to class prototypes, and the sums from which prototypes are computed.

* FedMR's inter-class loss: Fan et al., "Federated Learning with Partially Class-Disjoint Data via Manifold Reshaping"
  (TMLR 2023), eq. 4. It is not in the released code.
* FedProc: Mu et al., "FedProc: Prototypical Contrastive Federated Learning on Non-IID data" (FGCS 2023).

Prototypes are constants: no gradient flows into them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_collapse.losses.norms import root, squared_distances
from fedjax_collapse.losses.shapes import Features, Labels, Mask, Value
from fedjax_collapse.losses.task_loss import cross_entropy


def class_sums(
    features: Features, labels: Labels, mask: Mask, num_classes: int
) -> tuple[Float[Array, "classes features"], Float[Array, " classes"]]:
    """Returns the sum of the features over the true rows of each class, and the number of these rows.

    Summed over a client's batches and divided, they give the client's prototypes; summed over clients as well, the
    prototypes weighted by number of examples.
    """
    members = _members(labels, mask, num_classes).astype(features.dtype)
    features = jnp.where(mask[:, None], features, 0)
    return jnp.matmul(members.T, features, precision="highest"), jnp.sum(members, axis=0)


def prototype_margin(
    features: Features,
    labels: Labels,
    mask: Mask,
    prototypes: Float[Array, "classes features"],
    valid: Bool[Array, " classes"],
    negatives: Bool[Array, " classes"],
    selected: Mask | None = None,
) -> Value:
    """Returns FedMR's inter-class loss: how much farther rows are from their class's prototype than from others.

    Mean over the pairs of classes (i, j), j != i, of

        ``D_ij = mean over the true rows z of class i of max(||z - g_i|| - ||z - g_j||, 0)``

    where i has rows in the batch and a valid prototype, and j is among the ``negatives`` and has a valid prototype. 0
    if there is no such pair. The norms are Euclidean, not squared, with gradient 0 at distance 0.

    Args:
        valid: which prototypes are valid; the values of the others are ignored.
        negatives: the classes j, on which eq. 4 is ambiguous: the client's classes (as written) or all classes (which
            gives missing classes the role that the text describes).
        selected: restricts the loss to some rows (the paper's Lite variants).
    """
    distances, members, weights = _distances(features, labels, mask, prototypes, valid, selected)
    candidates = negatives & valid
    own = jnp.sum(jnp.where(members, distances, 0), axis=1, keepdims=True)
    hinges = jnp.where(candidates[None], jax.nn.relu(own - distances), 0)  # 0 for j = i
    present = jnp.any(members, axis=0)
    pairs = jnp.sum(present) * jnp.sum(candidates) - jnp.sum(present & candidates)
    return jnp.sum(weights * jnp.sum(hinges, axis=1)) / jnp.maximum(pairs, 1)


def prototype_distance(
    features: Features,
    labels: Labels,
    mask: Mask,
    prototypes: Float[Array, "classes features"],
    valid: Bool[Array, " classes"],
    selected: Mask | None = None,
) -> Value:
    """Returns FedMR's inter-class loss without the margin: the mean distance of rows to their class's prototype.

    Mean, over the classes i with rows in the batch and a valid prototype, of the mean of ``||z - g_i||`` over these
    rows (the paper's discussion of theorem 1); 0 without such a class. Arguments are as in ``prototype_margin``.
    """
    distances, members, weights = _distances(features, labels, mask, prototypes, valid, selected)
    own = jnp.sum(jnp.where(members, distances, 0), axis=1)
    return jnp.sum(weights * own) / jnp.maximum(jnp.sum(jnp.any(members, axis=0)), 1)


def prototype_cross_entropy(
    features: Features, labels: Labels, mask: Mask, prototypes: Float[Array, "classes features"]
) -> Value:
    """Returns FedProc's loss: cross-entropy of the cosines between rows and prototypes, mean over the true rows.

    ``mean_n [ log sum_c exp(z_n . g_c) - z_n . g_label ]``, z and g of unit length, temperature 1.

    A class without a prototype has the zero vector, as in the released code: its cosine is 0, and it stays in the sum
    over c. A row with norm below 1e-12 also counts as zero and has no gradient (in the released code it grows to
    1e12).
    """
    rows = _unit(jnp.where(mask[:, None], features, 0))
    return cross_entropy(rows @ _unit(jax.lax.stop_gradient(prototypes)).T, labels, mask)


def _members(labels, mask, num_classes):
    """Returns a mask [batch, classes] of the class of each true row."""
    return (labels[:, None] == jnp.arange(num_classes)[None]) & mask[:, None]


def _distances(features, labels, mask, prototypes, valid, selected):
    """Returns distances and memberships [batch, classes], and weights 1 / n_class, which average within a class."""
    mask = mask if selected is None else mask & selected
    members = _members(labels, mask, prototypes.shape[0]) & valid[None]
    features = jnp.where(mask[:, None], features, 0)
    prototypes = jnp.where(valid[:, None], jax.lax.stop_gradient(prototypes), 0)
    distances = root(squared_distances(features, prototypes))
    counts = jnp.maximum(jnp.sum(members, axis=0, keepdims=True), 1)
    return distances, members, jnp.sum(members / counts.astype(features.dtype), axis=1)


def _unit(rows, shortest=1e-12):
    squares = jnp.sum(rows**2, axis=1, keepdims=True)
    usable = squares > shortest**2
    return jnp.where(usable, rows / jnp.sqrt(jnp.where(usable, squares, 1)), 0)
