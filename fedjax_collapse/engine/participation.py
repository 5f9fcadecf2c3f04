"""Who takes part in a round, and how far they get.

All randomness comes from the round and the identity of a client, never from a position. A client that drops out is as
one that was not drawn: its upload counts for nothing and what it remembers stays, whatever the methods.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.options import Fraction, Share, check_fields, option
from fedjax_collapse.records import Key, UserError

_DRAW, _DROPOUT, _STRAGGLERS = 0, 2, 3  # streams of randomness within a round; 1 is the clients' training


@struct.dataclass
class Participation:
    """The rule by which cohorts are drawn. Subclasses may override ``draw`` and ``budgets``.

    ``fraction``: of the clients in a round, rounded down as in the papers' codes, but at least one is.
    ``rule``: ``uniform``; by ``size``, with probabilities in proportion to it, so that uploads are weighted equally;
    or by ``availability``: uniformly among those that are available, fewer than the fraction where too few are.
    ``availability``: the probability of being so in a round, one for all clients or one for each.
    ``dropout``: the probability that a client of the cohort does not come back. At least one does: the server would
    begin a round without any upload anew.
    ``stragglers``: the probability that a client takes only the share ``straggler_share`` of its local steps, at least
    one. None is for nobody.
    """

    fraction: Share = option(1.0)
    rule: str = option("uniform", choices=("uniform", "size", "availability"))
    availability: float | jax.Array = 1.0
    dropout: Fraction | None = None
    stragglers: Fraction | None = None
    straggler_share: Share = 0.5

    def check(self, num_clients: int, weighting: str) -> None:
        """Raises UserError for values that make no sense, alone or with the weighting of uploads."""
        check_fields(self)
        probabilities = np.asarray(self.availability)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise UserError("Participation: availability is outside [0, 1]: it is a probability")
        if probabilities.shape not in ((), (num_clients,)):
            raise UserError(
                f"Participation: availability of {len(probabilities)} clients, expected one or {num_clients}"
            )
        if self.rule == "size" and weighting != "equal":
            raise UserError(
                f"participation by size with weighting {weighting!r}: sizes would count twice; expected "
                f"weighting='equal'"
            )

    def cohort_size(self, num_clients: int) -> int:
        """The number of clients in a round."""
        return max(1, math.floor(self.fraction * num_clients + 1e-6))  # 0.29 * 100 is a little below 29

    def is_everyone(self, num_clients: int, cohort_size: int) -> bool:
        """Whether all clients, by identity, are certain to be in every cohort, and to come back."""
        is_known = self.rule == "uniform" and type(self).draw is Participation.draw
        return is_known and cohort_size == num_clients and self.dropout is None

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        """Identities [cohort_size] of a round's distinct clients; ``len(sizes)`` where there is none."""
        num_clients, key_draw = len(sizes), jax.random.fold_in(key, _DRAW)
        if self.rule == "uniform":
            whole = jnp.arange(num_clients)
            return whole if cohort_size == num_clients else jax.random.permutation(key_draw, num_clients)[:cohort_size]
        if self.rule == "size":
            scores = jnp.log(sizes) + jax.random.gumbel(key_draw, (num_clients,))
            return jax.lax.top_k(scores, cohort_size)[1]
        key_draw, key_available = jax.random.split(key_draw)
        margin = self.availability - jax.random.uniform(key_available, (num_clients,))
        is_available = at_least_one(margin > 0, margin)
        scores = jnp.where(is_available, jax.random.uniform(key_draw, (num_clients,)), -1)
        scores, ids = jax.lax.top_k(scores, cohort_size)
        return jnp.where(scores >= 0, ids, num_clients)

    def survivors(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array:
        """The cohort's identities; ``num_clients`` in place of those that drop out."""
        if self.dropout is None:
            return cohort
        drawn = jax.random.uniform(jax.random.fold_in(key, _DROPOUT), (num_clients,)).at[cohort].get(mode="clip")
        drawn = jnp.where(cohort < num_clients, drawn, -1)
        return jnp.where(at_least_one(drawn >= self.dropout, drawn), cohort, num_clients)

    def budgets(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array | None:
        """The share of its local steps that each of the cohort takes; None where all take all of them."""
        if self.stragglers is None:
            return None
        drawn = jax.random.uniform(jax.random.fold_in(key, _STRAGGLERS), (num_clients,)).at[cohort].get(mode="clip")
        return jnp.where(drawn < self.stragglers, self.straggler_share, 1.0)


def at_least_one(flags: jax.Array, scores: jax.Array) -> jax.Array:
    """The flags; that of the largest score alone where none is set."""
    return flags | (~jnp.any(flags) & (jnp.arange(len(flags)) == jnp.argmax(scores)))
