"""Samplers of cohorts. Their randomness depends on the round and on identities of clients, never on positions."""

import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_collapse.core.randomness import Stream
from fedjax_collapse.core.records import Key, UserError
from fedjax_collapse.schema.annotations import as_array
from fedjax_collapse.schema.options import Count, Interval, check_fields, option


@struct.dataclass
class Uniform:
    """Draws uniformly, without replacement. The base class of samplers."""

    def check(self, num_clients: int, weighting: str) -> None:
        """Raises UserError for invalid values, alone or in combination with the weighting of uploads."""
        check_fields(self)

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Uniform":
        """Returns the sampler for one round, given the key of the run's rounds."""
        return self

    may_be_empty: ClassVar[bool] = False  # whether no client may take part in a round

    def places(self, fraction: float, num_clients: int) -> int:
        """Returns the most clients in a round."""
        return max(1, math.floor(fraction * num_clients + 1e-6))  # 0.29 * 100 is a little below 29

    def expected_size(self, fraction: float, num_clients: int) -> float:
        """Returns the expected number of clients in a round, before any drop out."""
        return self.places(fraction, num_clients)

    def draw_fraction(self, key: Key, sizes: jax.Array, cohort_size: int, fraction: float) -> jax.Array:
        """Draws a cohort of a fraction of the clients, where that is more than a number of places; else ``draw``."""
        return self.draw(key, sizes, cohort_size)

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        """Draws a cohort.

        Args:
            key: of the draw.
            sizes: [clients] number of examples of each client.
            cohort_size: the number of clients to draw.

        Returns:
            Identities [cohort_size] of distinct clients; ``len(sizes)`` where there is none.
        """
        everyone = jnp.arange(len(sizes))
        return everyone if cohort_size == len(sizes) else jax.random.permutation(key, len(sizes))[:cohort_size]


@struct.dataclass
class HostUniform(Uniform):
    """Draws uniformly, without replacement, on the host, in time and memory of the cohort, not of all clients.

    The rule of federations on disk. Its cohorts differ from ``Uniform``'s: Floyd's algorithm ("Programming
    Pearls", 1987) on the raw numbers of NumPy's Philox generator, whose key is the key of the draw; sorted.
    """

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        count = len(sizes)
        if cohort_size == count:
            return jnp.arange(count)

        def draw(words):
            return self.draw_on_host(words, count, cohort_size)

        drawn = jax.ShapeDtypeStruct((cohort_size,), jnp.int32)
        return jax.pure_callback(draw, drawn, jax.random.key_data(key), vmap_method="sequential")

    def draw_on_host(self, words: np.ndarray, num_clients: int, cohort_size: int) -> np.ndarray:
        """Returns what ``draw`` returns, given the data of the key (``jax.random.key_data``)."""
        if cohort_size == num_clients:
            return np.arange(num_clients, dtype=np.int32)
        bits = np.random.Philox(key=int.from_bytes(np.asarray(words).tobytes(), "little") % 2**128)
        highest = np.arange(num_clients - cohort_size, num_clients)
        drawn = (bits.random_raw(cohort_size) >> np.uint64(11)) * 2.0**-53 * (highest + 1)
        cohort: set[int] = set()
        for high, number in zip(highest.tolist(), drawn.astype(np.int64).tolist(), strict=True):
            cohort.add(high if number in cohort else number)
        return np.sort(np.fromiter(cohort, np.int32, cohort_size))


@struct.dataclass
class Poisson(Uniform):
    """Draws every client with the probability ``fraction``, independently of the others; perhaps none.

    The cohort has a limited number of places, so that shapes are static: if more clients are drawn, some of them,
    chosen uniformly, do not take part. Uploads are to be weighted by the ``expected`` number of clients.

    Args:
        limit: number of places; None is ``m + 5 sqrt(m)`` for an expected number m, which is hardly ever reached.
        groups: number of groups of clients, by identity, that take turns: a client is drawn only in its group's rounds,
            with ``groups`` times the probability.
    """

    may_be_empty = True
    limit: Count | None = option(None)
    groups: Count = option(1)

    def check(self, num_clients: int, weighting: str) -> None:
        check_fields(self)
        if weighting != "expected":
            raise UserError(
                f"sampler poisson with weighting {weighting!r}: a cohort may be empty; expected weighting='expected'"
            )

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Poisson":
        return self if self.groups == 1 else _OfGroup(self.limit, self.groups, round % self.groups)

    def places(self, fraction: float, num_clients: int) -> int:
        if fraction * self.groups > 1:
            raise UserError(
                f"sampler poisson: fraction {fraction:g} in a round, from one of {self.groups} groups: expected at "
                f"most {1 / self.groups:g}"
            )
        mean = fraction * num_clients
        return min(num_clients, self.limit or math.ceil(mean + 5 * math.sqrt(mean)))

    def expected_size(self, fraction: float, num_clients: int) -> float:
        return fraction * num_clients

    def draw_fraction(self, key: Key, sizes: jax.Array, cohort_size: int, fraction: float) -> jax.Array:
        num_clients = len(sizes)
        bits = jax.random.bits(key, (num_clients,), jnp.uint32)  # of a uniform number; exact also for small fractions
        most = np.uint32(math.floor(fraction * self.groups * 2**32) - 1)
        bits = jnp.where(self.is_due(jnp.arange(num_clients)), bits, np.uint32(2**32 - 1))
        least, ids = jax.lax.top_k(~bits, cohort_size)
        return jnp.where((~least <= most) & self.is_due(ids), ids, num_clients)

    def is_due(self, ids: jax.Array) -> jax.Array:
        """Whether each client can be drawn in this round."""
        return jnp.ones(len(ids), bool)


@struct.dataclass
class _OfGroup(Poisson):
    """The sampler in the round of one of the groups."""

    turn: jax.Array = 0

    def is_due(self, ids: jax.Array) -> jax.Array:
        return ids % self.groups == self.turn


@struct.dataclass
class BySize(Uniform):
    """Draws in proportion to numbers of examples, without replacement. Uploads are to be weighted equally."""

    def check(self, num_clients: int, weighting: str) -> None:
        if weighting != "equal":
            raise UserError(
                f"sampler by_size with weighting {weighting!r}: sizes would count twice; expected weighting='equal'"
            )

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        scores = jnp.log(sizes) + jax.random.gumbel(key, (len(sizes),))
        return jax.lax.top_k(scores, cohort_size)[1]


@struct.dataclass
class Available(Uniform):
    """Draws uniformly among the clients that are available in the round; the cohort is smaller if too few are.

    Args:
        probability: probability that a client is available in a round, one for all clients or one per client.
        period: number of rounds of a day and a night. A client is available only in the first half of each period; the
            start of its periods is drawn once.
    """

    probability: float | jax.Array = 1.0
    period: Annotated[int, Interval(2)] | None = None

    def check(self, num_clients: int, weighting: str) -> None:
        check_fields(self)
        probabilities = per_client("Available: probability", self.probability, num_clients)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise UserError("Available: probability is outside [0, 1]")

    def in_round(self, key: Key, round: jax.Array, num_clients: int) -> "Available":
        if self.period is None:
            return self
        phases = jax.random.randint(Stream.AVAILABILITY.key(key), (num_clients,), 0, self.period)
        is_day = 2 * ((round + phases) % self.period) < self.period
        return self.replace(probability=self.probability * is_day, period=None)

    def draw(self, key: Key, sizes: jax.Array, cohort_size: int) -> jax.Array:
        num_clients = len(sizes)
        key_draw, key_available = jax.random.split(key)
        margin = self.probability - jax.random.uniform(key_available, (num_clients,))
        is_available = at_least_one(margin > 0, margin)
        scores = jnp.where(is_available, jax.random.uniform(key_draw, (num_clients,)), -1)
        scores, ids = jax.lax.top_k(scores, cohort_size)
        return jnp.where(scores >= 0, ids, num_clients)


def per_client(what: str, value: Any, num_clients: int) -> np.ndarray:
    """Returns the value of an option, one number for all clients or one per client, as an array.

    Raises:
        UserError: it has another shape.
    """
    numbers = as_array(what, value)
    if numbers.shape not in ((), (num_clients,)):
        raise UserError(f"{what} of {len(numbers)} clients, expected one or {num_clients}")
    return numbers


def at_least_one(flags: jax.Array, scores: jax.Array) -> jax.Array:
    """Returns the flags; if none is set, only the one with the largest score."""
    return flags | (~jnp.any(flags) & (jnp.arange(len(flags)) == jnp.argmax(scores)))


SAMPLERS = {  # by their names in a config
    "uniform": Uniform,
    "uniform_on_host": HostUniform,
    "poisson": Poisson,
    "by_size": BySize,
    "available": Available,
}
