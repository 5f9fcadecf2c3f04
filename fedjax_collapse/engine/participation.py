"""Which clients take part in a round, how many steps they take, and whose uploads arrive.

All randomness depends on the round and on identities of clients, never on positions. A client that drops out is treated
as if it had not been drawn: its upload is not counted and its state does not change, for every method. A client whose
upload is lost has trained, and stores its new state; the server treats it as if it had not been drawn.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Key, UserError
from fedjax_collapse.engine.samplers import Uniform, at_least_one, per_client
from fedjax_collapse.schema.options import Fraction, NonNegative, Positive, Share, check_fields, only_with, option
from fedjax_collapse.schema.user_code import check_signature


@struct.dataclass
class Clock:
    """Virtual time: the seconds that clients would take. A round takes as long as its slowest client.

    Args:
        step_seconds: seconds of a local step, one number for all clients or one per client.
        step_spread: factors ``exp(step_spread * N(0, 1))`` of these seconds, drawn once per client.
        upload_seconds: seconds of an upload.
        deadline: seconds after which uploads are lost; if all are late, the upload of the fastest client arrives.
    """

    step_seconds: Positive | jax.Array
    step_spread: NonNegative | None = None
    upload_seconds: NonNegative = 0.0
    deadline: NonNegative | None = None

    def check(self, num_clients: int) -> None:
        """Raises UserError for invalid values."""
        check_fields(self)
        seconds = per_client("Clock: step_seconds", self.step_seconds, num_clients)
        if not np.all((seconds > 0) & (seconds < np.inf)):
            raise UserError(f"Clock: step_seconds is not {'finite' if np.all(seconds > 0) else 'positive'}")

    def seconds(self, key: Key, steps: jax.Array) -> jax.Array:
        """Returns seconds [..., clients] until each client's upload, given its steps and the key of the rounds."""
        per_step = self.step_seconds
        if self.step_spread is not None:
            drawn = jax.random.normal(Stream.SPEEDS.key(key), steps.shape[-1:])
            per_step = per_step * jnp.exp(self.step_spread * drawn)
        return steps * per_step + self.upload_seconds


@struct.dataclass
class Participation:
    """Which clients take part in a round. Subclasses may override ``draw`` and ``budgets``.

    Args:
        fraction: of the clients in a round, rounded down as in the papers' codes, but to at least one client.
        sampler: draws the cohort (``samplers.py``), such as ``Uniform()`` or ``Available(probability=0.7)``; in a
            config a name, with its options next to it.
        dropout: probability that a client of the cohort does not return; None is 0. At least one returns, except with
            ``Poisson``.
        stragglers: probability that a client takes only ``straggler_share`` of its local steps; None is 0.
        straggler_share: fraction of its steps that a straggler takes, at least one step.
        upload_loss: probability that a client trains and stores its new state and private parts, but its model, reports
            and measurements do not arrive; None is 0. At least one upload arrives, except with ``Poisson``. Weights are
            normalised over the uploads that arrive, which the metric ``arrived`` marks.
        clock: virtual time, and a deadline after which uploads are lost; None is neither.

    Examples:
        >>> Participation(fraction=0.1, dropout=0.3).cohort_size(100)
        10
        >>> by_day = Participation(fraction=0.1, sampler=engine.Available(0.7, period=24))
    """

    fraction: Share = option(1.0)
    sampler: Uniform = Uniform()
    dropout: Fraction | None = None
    stragglers: Fraction | None = None
    straggler_share: Share = only_with(0.5, stragglers=...)
    upload_loss: Fraction | None = None
    clock: Clock | None = None

    def check(self, num_clients: int, weighting: str) -> None:
        """Raises UserError for invalid values, alone or in combination with the weighting of uploads."""
        check_fields(self)
        self.sampler.check(num_clients, weighting)
        check_signature("sampler: draw", self.sampler.draw, "key", "sizes", "cohort_size")
        if self.clock is not None:
            self.clock.check(num_clients)

    def cohort_size(self, num_clients: int) -> int:
        """Returns the most clients in a round."""
        return self.sampler.places(self.fraction, num_clients)

    def expected_size(self, num_clients: int) -> float:
        """Returns the expected number of clients in a round, before any drop out or lose their upload."""
        return self.sampler.expected_size(self.fraction, num_clients)

    def is_everyone(self, num_clients: int, cohort_size: int) -> bool:
        """Whether every cohort is certain to consist of all clients, in the order of identities."""
        is_known = type(self.sampler) is Uniform and type(self).draw is Participation.draw
        return is_known and cohort_size == num_clients and self.dropout is None

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Participation":
        """Returns the rule for one round, given the key of the run's rounds."""
        return self.replace(sampler=self.sampler.in_round(key, round, num_clients))

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        """Draws identities [cohort_size] of distinct clients, given the key of the round; see ``Uniform.draw``."""
        return self.sampler.draw_fraction(Stream.COHORT.key(key), sizes, cohort_size, self.fraction)

    def survivors(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array:
        """Returns the cohort with ``num_clients`` in place of the clients that drop out."""
        if self.dropout is None:
            return cohort
        drawn = _uniform(Stream.DROPOUT.key(key), cohort, num_clients)
        drawn = jnp.where(cohort < num_clients, drawn, -1)
        returns = drawn >= self.dropout
        return jnp.where(returns if self.sampler.may_be_empty else at_least_one(returns, drawn), cohort, num_clients)

    def budgets(self, key: Key, cohort: jax.Array, num_clients: int) -> jax.Array | None:
        """Returns the fraction of its local steps that each client of the cohort takes; None if all take all steps."""
        if self.stragglers is None:
            return None
        drawn = _uniform(Stream.STRAGGLERS.key(key), cohort, num_clients)
        return jnp.where(drawn < self.stragglers, self.straggler_share, 1.0)

    @property
    def has_deadline(self) -> bool:
        """Whether uploads can be too late."""
        return self.clock is not None and self.clock.deadline is not None

    def arrivals(
        self, key: Key, cohort: jax.Array, num_clients: int, seconds: jax.Array | None = None
    ) -> jax.Array | None:
        """Whether the upload of each client of the cohort arrives, False for padding; None if no upload can be lost.

        ``seconds``: [clients] until each client's upload; needed with a deadline.
        """
        if self.upload_loss is None and not self.has_deadline:
            return None
        scores = jax.random.uniform(Stream.UPLOADS.key(key), (num_clients,))
        arrives = is_member = jnp.zeros(num_clients, bool).at[cohort].set(True, mode="drop")
        if self.upload_loss is not None:
            arrives = arrives & (scores >= self.upload_loss)
        if self.has_deadline:
            arrives, scores = arrives & (seconds <= self.clock.deadline), -seconds
        if not self.sampler.may_be_empty:
            arrives = at_least_one(arrives, jnp.where(is_member, scores, -jnp.inf))
        return arrives.at[cohort].get(mode="fill", fill_value=False)


def _uniform(key, cohort, num_clients):
    """Draws a number in [0, 1) for each client of the cohort, by identity."""
    return jax.random.uniform(key, (num_clients,)).at[cohort].get(mode="clip")
