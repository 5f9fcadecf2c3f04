"""Class prototypes: the mean features of each class over the clients' data. Shared by FedMR, FedProc, FedProto, FedPAC.

Each client reports sums and counts. Their sums over the cohort, divided, are the means of all reported examples, that
is, the clients' means weighted by ``N_k^c / sum_k N_k^c``.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
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

    def init_shared(self, variables: Variables, shapes: Outputs) -> Prototypes:
        return no_prototypes(shapes)

    def penalty(self, view: LocalView) -> dict[str, Term]:
        """Returns the mean over rows and features of ``(z_nd - c_{y_n, d})^2``; rows without a prototype count as 0."""
        (means, valid), labels = view.shared, view.batch.labels
        squares = jnp.mean((view.outputs.features - means[labels]) ** 2, axis=1)
        value = masked_mean(jnp.where(valid[labels], squares, 0), view.batch.mask)
        return {"prototype": Term(self.strength, value)}

    def combine(self, shared: Prototypes, report: PyTree) -> Prototypes:
        """Returns the means of the summed reports; classes without a report keep theirs."""
        sums, counts = report
        means, reported = sums / jnp.maximum(counts, 1)[:, None], counts > 0
        return Prototypes(jnp.where(reported[:, None], means, shared.means), shared.valid | reported)


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


def local_class_sums(view: FinishView, num_classes: int, mode: str = "eval") -> tuple[jax.Array, jax.Array]:
    """Returns one client's report: sums [classes, features] and counts [classes] over all of its examples.

    Features are those of the client's trained model in the given ``mode``.
    """

    def summarize(outputs, batch):
        return class_sums(outputs.features, batch.labels, batch.mask, num_classes)

    return view.sum_over_data(view.trained, summarize, mode == "train")
