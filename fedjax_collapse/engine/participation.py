"""Who takes part in a round, how far they get, and whose upload arrives.

All randomness comes from the round and the identity of a client, never from a position. A client that drops out is as
one that was not drawn: its upload counts for nothing and what it remembers stays, whatever the methods. A client whose
upload is lost has trained, and continues as if it had been heard; for the server it is as one that was not drawn.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.core import randomness
from fedjax_collapse.core.annotations import as_array
from fedjax_collapse.core.options import (
    Fraction,
    Interval,
    NonNegative,
    Positive,
    Share,
    check_fields,
    only_with,
    option,
)
from fedjax_collapse.core.records import Key, UserError


@struct.dataclass
class Participation:
    """The rule by which cohorts are drawn. Subclasses may override ``draw`` and ``budgets``.

    ``fraction``: of the clients in a round, rounded down as in the papers' codes, but at least one is.
    ``rule``: ``uniform``; by ``size``, with probabilities in proportion to it, so that uploads are weighted equally;
    or by ``availability``: uniformly among those that are available, fewer than the fraction where too few are.
    ``availability``: the probability of being so in a round, one for all clients or one for each.
    ``dropout``: the probability that a client of the cohort does not come back. At least one does: the server would
    begin a round without any upload again.
    ``stragglers``: the probability that a client takes only the share ``straggler_share`` of its local steps, at least
    one. None is for nobody.
    ``upload_loss``: the probability that a client trains and keeps what it learned, its memory and its private parts,
    but nothing that it sends arrives: neither its model nor its reports, nor what it measures afterwards of the new
    model. The weights are of those that arrive; at least one does. ``arrived`` among a round's metrics says who.
    ``availability_period``: day and night, with the rule ``availability``: in rounds, a period in the first half of
    which alone a client is available, with the probability above. It begins at a round that is drawn for each client.
    ``step_seconds``: virtual time of a local step, one for all clients or one for each; a round takes as long as its
    slowest client. ``step_spread``: times ``exp(step_spread * N(0, 1))``, drawn for each client. ``upload_seconds``: of
    sending the upload. ``deadline``: the seconds after which uploads count as lost, but the fastest client's where no
    other arrives.
    """

    fraction: Share = option(1.0)
    rule: str = option("uniform", choices=("uniform", "size", "availability"))
    availability: float | jax.Array = only_with(1.0, rule="availability")
    dropout: Fraction | None = None
    stragglers: Fraction | None = None
    straggler_share: Share = only_with(0.5, stragglers=...)
    upload_loss: Fraction | None = None
    availability_period: Annotated[int, Interval(2)] | None = only_with(None, rule="availability")
    step_seconds: Positive | jax.Array | None = None
    step_spread: NonNegative | None = only_with(None, step_seconds=...)
    upload_seconds: NonNegative | None = only_with(None, step_seconds=...)
    deadline: NonNegative | None = only_with(None, step_seconds=...)

    def check(self, num_clients: int, weighting: str) -> None:
        """Raises UserError for values that make no sense, alone or with the weighting of uploads."""
        check_fields(self)
        self._check_availability(num_clients)
        self._check_times(num_clients)
        if self.rule == "size" and weighting != "equal":
            raise UserError(
                f"participation by size with weighting {weighting!r}: sizes would count twice; expected "
                f"weighting='equal'"
            )

    def _check_availability(self, num_clients):
        probabilities = _per_client("availability", self.availability, num_clients)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise UserError("Participation: availability is outside [0, 1]: it is a probability")

    def _check_times(self, num_clients):
        seconds = np.ones(()) if self.step_seconds is None else self.step_seconds
        seconds = _per_client("step_seconds", seconds, num_clients)
        if not np.all((seconds > 0) & (seconds < np.inf)):
            raise UserError(f"Participation: step_seconds is not {'finite' if np.all(seconds > 0) else 'positive'}")

    def cohort_size(self, num_clients: int) -> int:
        """The number of clients in a round."""
        return max(1, math.floor(self.fraction * num_clients + 1e-6))  # 0.29 * 100 is a little below 29

    def is_everyone(self, num_clients: int, cohort_size: int) -> bool:
        """Whether all clients, by identity, are certain to be in every cohort, and to come back."""
        is_known = self.rule == "uniform" and type(self).draw is Participation.draw
        return is_known and cohort_size == num_clients and self.dropout is None

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Participation":
        """The rule of that round, whose availability is that of the hour; ``key``: of the run."""
        period = self.availability_period
        if period is None:
            return self
        phases = jax.random.randint(jax.random.fold_in(key, randomness.AVAILABILITY), (num_clients,), 0, period)
        is_day = 2 * ((round + phases) % period) < period
        return self.replace(availability=self.availability * is_day, availability_period=None)

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        """Identities [cohort_size] of a round's distinct clients; ``len(sizes)`` where there is none."""
        num_clients, key_draw = len(sizes), jax.random.fold_in(key, randomness.COHORT)
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
        drawn = _uniform(jax.random.fold_in(key, randomness.DROPOUT), cohort, num_clients)
        drawn = jnp.where(cohort < num_clients, drawn, -1)
        return jnp.where(at_least_one(drawn >= self.dropout, drawn), cohort, num_clients)

    def budgets(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array | None:
        """The share of its local steps that each of the cohort takes; None where all take all of them."""
        if self.stragglers is None:
            return None
        drawn = _uniform(jax.random.fold_in(key, randomness.STRAGGLERS), cohort, num_clients)
        return jnp.where(drawn < self.stragglers, self.straggler_share, 1.0)

    def seconds(self, key: Key, steps: jax.Array) -> jax.Array:
        """Virtual seconds [..., clients] until all clients' uploads, after so many steps each; ``key``: of the run."""
        per_step = self.step_seconds
        if self.step_spread is not None:
            drawn = jax.random.normal(jax.random.fold_in(key, randomness.SPEEDS), steps.shape[-1:])
            per_step = per_step * jnp.exp(self.step_spread * drawn)
        return steps * per_step + (0.0 if self.upload_seconds is None else self.upload_seconds)

    def arrivals(
        self, key: Key, cohort: jax.Array, num_clients: int, seconds: jax.Array | None = None
    ) -> jax.Array | None:
        """Whether the upload of each of the cohort arrives, False for padding; None where all that are sent do.

        ``seconds``: [clients], where there is a deadline.
        """
        if self.upload_loss is None and self.deadline is None:
            return None
        scores = jax.random.uniform(jax.random.fold_in(key, randomness.UPLOADS), (num_clients,))
        arrives = is_member = jnp.zeros(num_clients, bool).at[cohort].set(True, mode="drop")
        if self.upload_loss is not None:
            arrives = arrives & (scores >= self.upload_loss)
        if self.deadline is not None:
            arrives, scores = arrives & (seconds <= self.deadline), -seconds
        arrives = at_least_one(arrives, jnp.where(is_member, scores, -jnp.inf))
        return arrives.at[cohort].get(mode="fill", fill_value=False)


def _per_client(name, value, num_clients):
    """The numbers, one for all clients or one for each."""
    numbers = as_array(f"Participation: {name}", value)
    if numbers.shape not in ((), (num_clients,)):
        raise UserError(f"Participation: {name} of {len(numbers)} clients, expected one or {num_clients}")
    return numbers


def _uniform(key, cohort, num_clients):
    """A number in [0, 1) for each of the cohort, drawn by identity."""
    return jax.random.uniform(key, (num_clients,)).at[cohort].get(mode="clip")


def at_least_one(flags: jax.Array, scores: jax.Array) -> jax.Array:
    """The flags; that of the largest score alone where none is set."""
    return flags | (~jnp.any(flags) & (jnp.arange(len(flags)) == jnp.argmax(scores)))
