"""Class prototypes: the mean features of each class over the clients' data. Shared by FedMR, FedProc, FedProto, FedPAC.

Each client reports sums and counts. Their sums over the cohort, divided, are the means of all reported examples, that
is, the clients' means weighted by ``N_k^c / sum_k N_k^c``.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, Scalar, UserError, Variables
from fedjax_collapse.losses import class_sums, masked_mean
from fedjax_collapse.methods.base import FinishView, LocalView, Method, Term

MODES = ("eval", "train")  # of the network while prototypes are computed


class Prototypes(NamedTuple):
    """The server's prototypes; zero and not valid until their class is first reported."""

    means: jax.Array  # [classes, features]
    valid: jax.Array  # [classes], bool


class WithPrototypes(Method):
    """A method whose state at the server is prototypes, to which ``strength`` pulls features."""

    needs = ("classes",)

    strength: Scalar

    def init_shared(self, variables: Variables, shapes: Outputs) -> Prototypes:
        return no_prototypes(shapes)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        return {"prototype": Term(self.strength, mean_square_to_prototypes(view, view.shared))}

    def combine(self, shared: Prototypes, report: PyTree) -> Prototypes:
        return update_prototypes(shared, *report)


def no_prototypes(shapes: Outputs) -> Prototypes:
    """Returns the prototypes before the first round: none is valid."""
    num_classes, dim = shapes.logits.shape[1], shapes.features.shape[1]
    return Prototypes(jnp.zeros((num_classes, dim), shapes.features.dtype), jnp.zeros(num_classes, bool))


def one_hot(shapes: Outputs) -> Prototypes:
    """Returns fixed prototypes: the c-th unit vector for class c."""
    num_classes, dim = shapes.logits.shape[1], shapes.features.shape[1]
    if dim < num_classes:
        raise UserError(f"one-hot prototypes: {num_classes} classes need at least as many features, not {dim}")
    return Prototypes(jnp.eye(num_classes, dim, dtype=shapes.features.dtype), jnp.ones(num_classes, bool))


def mean_square_to_prototypes(view: LocalView, prototypes: Prototypes) -> jax.Array:
    """Returns the mean over rows and features of ``(z_nd - c_{y_n, d})^2``; rows without a prototype count as 0."""
    labels = view.batch.labels
    squares = jnp.mean((view.outputs.features - prototypes.means[labels]) ** 2, axis=1)
    return masked_mean(jnp.where(prototypes.valid[labels], squares, 0), view.batch.mask)


def local_class_sums(view: FinishView, num_classes: int, mode: str = "eval") -> tuple[jax.Array, jax.Array]:
    """Returns one client's report: sums [classes, features] and counts [classes] over all of its examples.

    Features are those of the client's trained model in the given ``mode``.
    """

    def summarize(outputs, batch):
        return class_sums(outputs.features, batch.labels, batch.mask, num_classes)

    return view.sum_over_data(view.trained, summarize, mode == "train")


def update_prototypes(prototypes: Prototypes, sums: jax.Array, counts: jax.Array) -> Prototypes:
    """Returns the prototypes after a round from the summed reports; classes without a report keep theirs."""
    means = sums / jnp.maximum(counts, 1)[:, None]
    reported = counts > 0
    return Prototypes(jnp.where(reported[:, None], means, prototypes.means), prototypes.valid | reported)
