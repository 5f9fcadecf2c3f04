"""Who takes part in a round, how far they get, and whose upload arrives.

All randomness comes from the round and the identity of a client, never from a position. A client that drops out is as
one that was not drawn: its upload counts for nothing and what it remembers stays, whatever the methods. A client whose
upload is lost has trained, and continues as if it had been heard; for the server it is as one that was not drawn.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.core.options import Fraction, NonNegative, Positive, Share, check_fields, only_with, option
from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Key, UserError
from fedjax_collapse.engine.samplers import Uniform, at_least_one, per_client


@struct.dataclass
class Clock:
    """Virtual time: seconds that clients would take; a round takes as long as its slowest client.

    ``step_seconds``: of a local step, one for all clients or one for each.
    ``step_spread``: multiplies them by ``exp(step_spread * N(0, 1))``, drawn once for each client.
    ``upload_seconds``: of sending the upload.
    ``deadline``: uploads that take longer count as lost; if all do, that of the fastest client arrives.
    """

    step_seconds: Positive | jax.Array
    step_spread: NonNegative | None = None
    upload_seconds: NonNegative = 0.0
    deadline: NonNegative | None = None

    def check(self, num_clients: int) -> None:
        """Raises UserError for values that make no sense."""
        check_fields(self)
        seconds = per_client("Clock: step_seconds", self.step_seconds, num_clients)
        if not np.all((seconds > 0) & (seconds < np.inf)):
            raise UserError(f"Clock: step_seconds is not {'finite' if np.all(seconds > 0) else 'positive'}")

    def seconds(self, key: Key, steps: jax.Array) -> jax.Array:
        """Seconds [..., clients] until the uploads of all clients, after so many steps each; ``key``: of the run."""
        per_step = self.step_seconds
        if self.step_spread is not None:
            drawn = jax.random.normal(Stream.SPEEDS.key(key), steps.shape[-1:])
            per_step = per_step * jnp.exp(self.step_spread * drawn)
        return steps * per_step + self.upload_seconds


@struct.dataclass
class Participation:
    """Which clients take part in a round. Subclasses may override ``draw`` and ``budgets``.

    ``fraction``: of the clients in a round, rounded down as in the papers' codes, but at least one is.
    ``sampler``: how they are drawn (``samplers.py``): ``Uniform()``, ``BySize()``, ``Available(probability=0.7)``.
    ``dropout``: the probability that a client of the cohort does not come back. At least one does: the server would
    begin a round without any upload again.
    ``stragglers``: the probability that a client takes only the share ``straggler_share`` of its local steps, at least
    one. None is for nobody.
    ``upload_loss``: the probability that a client trains and keeps what it learned, its memory and its private parts,
    but nothing that it sends arrives: neither its model nor its reports, nor what it measures afterwards of the new
    model. The weights are of those that arrive; at least one does. ``arrived`` among a round's metrics says who.
    ``clock``: virtual time, and a deadline after which uploads count as lost; None: there is none.
    """

    fraction: Share = option(1.0)
    sampler: Uniform = Uniform()
    dropout: Fraction | None = None
    stragglers: Fraction | None = None
    straggler_share: Share = only_with(0.5, stragglers=...)
    upload_loss: Fraction | None = None
    clock: Clock | None = None

    def check(self, num_clients: int, weighting: str) -> None:
        """Raises UserError for values that make no sense, alone or with the weighting of uploads."""
        check_fields(self)
        self.sampler.check(num_clients, weighting)
        if self.clock is not None:
            self.clock.check(num_clients)

    def cohort_size(self, num_clients: int) -> int:
        """The number of clients in a round."""
        return max(1, math.floor(self.fraction * num_clients + 1e-6))  # 0.29 * 100 is a little below 29

    def is_everyone(self, num_clients: int, cohort_size: int) -> bool:
        """Whether all clients, by identity, are certain to be in every cohort, and to come back."""
        is_known = type(self.sampler) is Uniform and type(self).draw is Participation.draw
        return is_known and cohort_size == num_clients and self.dropout is None

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Participation":
        """Participation in that round; ``key``: of the run."""
        return self.replace(sampler=self.sampler.in_round(key, round, num_clients))

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        """Identities [cohort_size] of a round's distinct clients; ``len(sizes)`` where there is none."""
        return self.sampler.draw(Stream.COHORT.key(key), sizes, cohort_size)

    def survivors(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array:
        """The cohort's identities; ``num_clients`` in place of those that drop out."""
        if self.dropout is None:
            return cohort
        drawn = _uniform(Stream.DROPOUT.key(key), cohort, num_clients)
        drawn = jnp.where(cohort < num_clients, drawn, -1)
        return jnp.where(at_least_one(drawn >= self.dropout, drawn), cohort, num_clients)

    def budgets(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array | None:
        """The share of its local steps that each of the cohort takes; None where all take all of them."""
        if self.stragglers is None:
            return None
        drawn = _uniform(Stream.STRAGGLERS.key(key), cohort, num_clients)
        return jnp.where(drawn < self.stragglers, self.straggler_share, 1.0)

    @property
    def has_deadline(self) -> bool:
        """Whether uploads may be lost for being late."""
        return self.clock is not None and self.clock.deadline is not None

    def arrivals(
        self, key: Key, cohort: jax.Array, num_clients: int, seconds: jax.Array | None = None
    ) -> jax.Array | None:
        """Whether the upload of each of the cohort arrives, False for padding; None where all that are sent do.

        ``seconds``: [clients], where there is a deadline.
        """
        if self.upload_loss is None and not self.has_deadline:
            return None
        scores = jax.random.uniform(Stream.UPLOADS.key(key), (num_clients,))
        arrives = is_member = jnp.zeros(num_clients, bool).at[cohort].set(True, mode="drop")
        if self.upload_loss is not None:
            arrives = arrives & (scores >= self.upload_loss)
        if self.has_deadline:
            arrives, scores = arrives & (seconds <= self.clock.deadline), -seconds
        arrives = at_least_one(arrives, jnp.where(is_member, scores, -jnp.inf))
        return arrives.at[cohort].get(mode="fill", fill_value=False)


def _uniform(key, cohort, num_clients):
    """A number in [0, 1) for each of the cohort, drawn by identity."""
    return jax.random.uniform(key, (num_clients,)).at[cohort].get(mode="clip")
