"""Class prototypes: mean features of every class, from the clients' data to what the server keeps.

A client reports sums and counts. Summed over the cohort and divided they are the means of all reported examples, that
is the clients' means weighted by ``N_k^c / sum_k N_k^c``. FedMR and FedProc share this.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, UserError
from fedjax_collapse.losses import class_sums
from fedjax_collapse.methods.base import FinishView

MODES = ("eval", "train")  # in which the network runs when prototypes are computed


class Prototypes(NamedTuple):
    """What the server keeps; a prototype is valid as soon as its class was reported once, and zero before."""

    means: jax.Array  # [classes, features]
    valid: jax.Array  # [classes], bool


def no_prototypes(shapes: Outputs) -> Prototypes:
    """The prototypes before the first round."""
    num_classes, dim = shapes.logits.shape[1], shapes.features.shape[1]
    return Prototypes(jnp.zeros((num_classes, dim), shapes.features.dtype), jnp.zeros(num_classes, bool))


def one_hot(shapes: Outputs) -> Prototypes:
    """Fixed unit vectors, for each class its own coordinate of the features."""
    num_classes, dim = shapes.logits.shape[1], shapes.features.shape[1]
    if dim < num_classes:
        raise UserError(f"one-hot prototypes: {num_classes} classes need at least as many features, not {dim}")
    return Prototypes(jnp.eye(num_classes, dim, dtype=shapes.features.dtype), jnp.ones(num_classes, bool))


def local_class_sums(view: FinishView, num_classes: int, mode: str = "eval") -> tuple[jax.Array, jax.Array]:
    """One client's report: sums [classes, features] and counts [classes] of all its examples, from the model that it
    just trained, in evaluation or in training mode."""

    def summarize(outputs, batch):
        return class_sums(outputs.features, batch.labels, batch.mask, num_classes)

    return view.sum_over_data(view.trained, summarize, mode == "train")


def update_prototypes(prototypes: Prototypes, sums: jax.Array, counts: jax.Array) -> Prototypes:
    """The prototypes after a round, from the cohort's summed reports; a class that nobody reported keeps its own."""
    means = sums / jnp.maximum(counts, 1)[:, None]
    reported = counts > 0
    return Prototypes(jnp.where(reported[:, None], means, prototypes.means), prototypes.valid | reported)
