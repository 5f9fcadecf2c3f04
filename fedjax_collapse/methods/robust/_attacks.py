"""Malicious clients, and their knowledge of others' uploads."""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.methods.base import CohortView, Method, RoundView
from fedjax_collapse.optim.aggregation import per_client, weighted_sum
from fedjax_collapse.schema.options import Fraction


class Attack(Method):
    """A method of malicious clients, in every round in which they take part.

    Args:
        share: fraction of malicious clients.
    """

    strengths = ("share",)
    share: Fraction = 0.2

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        """Raises UserError if no client is malicious."""
        if not self.count(num_clients):
            raise UserError(
                f"{type(self).__name__}: share {self.share:g} of {num_clients} clients is none, expected at least one"
            )

    def count(self, num_clients: int) -> int:
        """Returns how many of the clients are malicious."""
        return round(float(self.share) * num_clients)

    def is_malicious(self, ids: jax.Array, num_clients: jax.Array) -> jax.Array:
        """Whether clients are malicious, by identity."""
        return (ids >= num_clients - jnp.round(self.share * num_clients)) & (ids < num_clients)

    def is_own(self, view: RoundView) -> jax.Array:
        """Whether the view's client is malicious."""
        return self.is_malicious(view.client.id, view.client.num_clients)


class OmniscientAttack(Attack):
    """An attack whose malicious clients know the honest uploads of the round, and all send the same in their place."""

    def forge(self, honest: "Honest") -> PyTree:
        """Returns the upload of each malicious client."""
        raise NotImplementedError

    def corrupt_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        malicious = view.counted & self.is_malicious(view.id, view.num_clients)
        forged = self.forge(Honest(stacked, view.counted & ~malicious, jnp.sum(malicious)))
        return jax.tree.map(lambda leaf, new: jnp.where(per_client(malicious, leaf), new[None], leaf), stacked, forged)


class Honest:
    """The uploads of a cohort that are honest and count.

    Args:
        stacked: the uploads of all clients, [cohort, ...].
        mask: [cohort] whether they are honest and count.
        num_malicious: the number of malicious uploads that count.
    """

    def __init__(self, stacked: PyTree, mask: jax.Array, num_malicious: jax.Array):
        self.stacked, self.mask, self.num_malicious = stacked, mask, num_malicious
        self.count = jnp.sum(mask)
        self.mean = weighted_sum(stacked, mask / jnp.maximum(self.count, 1))

    @property
    def deviation(self) -> PyTree:
        """The standard deviation of every coordinate, with divisor n - 1; 0 of a single upload."""

        def of(leaf, mean):
            squares = jnp.where(per_client(self.mask, leaf), (leaf - mean[None]) ** 2, 0)
            return jnp.sqrt(jnp.sum(squares, axis=0) / jnp.maximum(self.count - 1, 1))

        return jax.tree.map(of, self.stacked, self.mean)
