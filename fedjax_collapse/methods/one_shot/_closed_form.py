"""Classifiers in closed form: sums of features that all clients send once, before the first round.

    n_c = number of examples of class c,   s_c = sum of their features f,   Q = sum f f^T over all examples

with the features of the initial network in evaluation mode. They are sums over examples, so that the classifier depends
neither on the partition nor on the order of the clients. A matrix is inverted by its eigenvalues; directions in which
it is 0 up to rounding are left out, as in the pseudoinverse.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar, UserError, Variables
from fedjax_collapse.losses import class_sums
from fedjax_collapse.methods._linear_head import check_linear_head, with_head
from fedjax_collapse.methods.base import Exclusion, FinishView, Method, Setup
from fedjax_collapse.nn.model import Model

FLOOR = 1e-6  # added to variances, or the least one
_NEVER = -1e9  # the bias of a class without examples
_ROUNDING = 10  # epsilons of the largest eigenvalue below which an eigenvalue is 0


class Sums(NamedTuple):
    """A client's report; after the reduction, the sum over all clients."""

    clients: jax.Array  # their number
    counts: jax.Array  # [classes]
    features: jax.Array  # [classes, d]
    products: jax.Array  # [d, d]

    def centred(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the number of examples, their mean [d], and the products around it [d, d]."""
        size = jnp.sum(self.counts)
        mean = jnp.sum(self.features, axis=0) / size
        return size, mean, self.products - size * jnp.outer(mean, mean)


class ClosedForm(Method):
    """A method whose first model has a classifier in closed form, from ``solve``.

    A subclass has an option ``finetune``: whether clients then train the network; otherwise nothing is trained.
    """

    needs = ("classes",)
    when_measured = "start"

    @property
    def freeze(self) -> str:
        return "none" if self.finetune else "all"

    def solve(self, sums: Sums) -> tuple[jax.Array, jax.Array]:
        """Returns kernel [d, classes] and bias [classes] from the sums over all clients."""
        raise NotImplementedError

    def check_with(self, setup: Setup) -> None:
        if setup.private != "none":
            raise UserError(
                f"{type(self).__name__}: private {setup.private!r} makes features or heads differ between clients, "
                "expected 'none'"
            )
        self.check_head(setup.model)

    def check_head(self, model: Model) -> None:
        """Raises UserError for a head whose params ``apply`` does not compute."""
        check_linear_head(type(self).__name__, model)

    @property
    def excludes(self) -> tuple[Exclusion, ...]:
        if not self.finetune:
            return (Exclusion((), "{own} trains nothing, so {other} would have no effect; set finetune=True"),)
        return (Exclusion(("apply",), "each makes the first model, expected at most one", when="start"),)

    def measure(self, view: FinishView) -> Sums:
        def summarize(outputs, batch):
            features = jnp.where(batch.mask[:, None], outputs.features, 0).astype(jnp.result_type(float))
            sums, counts = class_sums(features, batch.labels, batch.mask, outputs.logits.shape[1])
            return counts, sums, jnp.matmul(features.T, features, precision="highest")

        counts, sums, products = view.sum_over_data(view.server, summarize)
        return Sums(jnp.ones((), counts.dtype), counts, sums, products)

    def apply(self, variables: Variables, measured: Sums, model: Model) -> Variables:
        return with_head(variables, model, *self.solve(measured))


def inverse_times(matrix: jax.Array, right: jax.Array, ridge: Scalar = 0.0) -> jax.Array:
    """Returns ``(matrix + ridge I)^-1 right`` for a positive semidefinite matrix [d, d] and ``right`` [d, n].

    Directions in which the matrix is 0 up to rounding are left out; ``right`` should have no part in them.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    is_there = values > _ROUNDING * jnp.finfo(matrix.dtype).eps * values[-1]
    inverse = jnp.where(is_there, 1 / jnp.where(is_there, values + ridge, 1), 0)
    return times(vectors * inverse, times(vectors.T, right))


def log_shares(counts: jax.Array) -> jax.Array:
    """Returns the logarithms of the classes' shares of all examples; -1e9 for a class without examples."""
    return jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1) / jnp.sum(counts)), _NEVER)


def shrunk(covariance: jax.Array, shrink: Scalar) -> jax.Array:
    """Returns covariances [..., d, d] with this weight of a multiple of the identity of the same trace, plus 1e-6 I."""
    dim = covariance.shape[-1]
    size = shrink * jnp.trace(covariance, axis1=-2, axis2=-1)[..., None, None] / dim + FLOOR
    return (1 - shrink) * covariance + size * jnp.eye(dim, dtype=covariance.dtype)


def times(one: jax.Array, other: jax.Array) -> jax.Array:
    """Returns the product of matrices in the full precision of their type."""
    return jnp.matmul(one, other, precision="highest")
