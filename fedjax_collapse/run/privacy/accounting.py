"""The privacy that rounds with Gaussian noise spend, and the noise that a budget needs, by ``dp-accounting``.

Three traps of the accounting are handled here, each with a test:

* Sampling without replacement is accounted for between federations in which one client is replaced, where the sum of
  the clipped uploads changes by up to two clips. The RDP accountant of ``dp-accounting`` does not double the
  sensitivity, its PLD accountant does; so the former gets half of the noise multiplier.
* Cohorts with a limited number of places are not Poisson sampling, and have another PLD.
* Where as many groups of clients as ``bands`` take part in turn, over which noise may be correlated, a client is drawn
  from its group, with ``bands`` times the probability, in every ``bands``-th round.
"""

import dataclasses
import functools
import math
from typing import Annotated

from fedjax_collapse.core.records import UserError, installed
from fedjax_collapse.schema.options import Count, Fraction, NonNegative, Positive, check_fields, check_value, option

ACCOUNTANTS = ("pld", "rdp")
SAMPLINGS = ("poisson", "without_replacement", "none")
NEIGHBOURS = ("add_or_remove", "replace")
_MOST = 14.0  # the logarithm of the largest noise multiplier that is searched for
_STEP, _PRECISION = 0.2, 1e-4  # likewise, of how far the search looks at once, and of its result


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Gaussian noise on sums of clipped uploads, round by round.

    Args:
        population: the number of clients from which cohorts are drawn.
        cohort: the expected number of clients in a round.
        rounds: their number.
        sampling: ``poisson``, where every client takes part with the same probability; ``without_replacement``, cohorts
            of a fixed size; or ``none``, where all take part in every round.
        places: the most clients in a round, with Poisson sampling; those beyond are dropped. None is no limit.
        bands: the number of groups of clients that take part in turn, and of rounds over which noise may be correlated.
        neighbours: whether federations differ by a client that is added or removed (``add_or_remove``), or by one that
            is replaced (``replace``), which is the only choice without replacement.

    Examples:
        >>> mechanism = Mechanism(population=1000, cohort=50, rounds=500)
        >>> epsilon(mechanism, noise_multiplier=1.0, delta=1e-5, accountant="rdp")  # doctest: +SKIP
        8.3016
    """

    population: Count
    cohort: Positive
    rounds: Count
    sampling: str = option("poisson", choices=SAMPLINGS)
    places: Count | None = None
    bands: Count = 1
    neighbours: str = option("add_or_remove", choices=NEIGHBOURS)

    def check(self) -> None:
        """Raises UserError for invalid values, alone or in combination."""
        check_fields(self, "privacy")
        what = f"privacy: {self.sampling} sampling"
        if self.cohort * self.bands > self.population:
            times = f" in each of {self.bands} groups" if self.bands > 1 else ""
            raise UserError(
                f"privacy: population {self.population}: expected at least the {self.cohort:g} clients of a "
                f"round{times}"
            )
        if self.sampling == "without_replacement" and self.neighbours != "replace":
            raise UserError(f"{what}: it is only accounted for with neighbours='replace'")
        if self.sampling != "poisson" and (self.places is not None or self.bands > 1):
            raise UserError(f"{what}: expected poisson with {'places' if self.bands == 1 else 'bands'}")

    @property
    def probability(self) -> float:
        """With which a client is drawn, in a round in which it can be."""
        return self.cohort * self.bands / self.population

    @property
    def releases(self) -> int:
        """The number of rounds in which a client can be drawn."""
        return math.ceil(self.rounds / self.bands)


def epsilon(mechanism: Mechanism, noise_multiplier: float, delta: float, accountant: str = "pld") -> float:
    """Returns the epsilon of (epsilon, delta)-differential privacy after all rounds; infinite without noise.

    Args:
        mechanism: the rounds.
        noise_multiplier: standard deviation of the noise on the sum, divided by the clip.
        delta: of the guarantee.
        accountant: ``pld``, privacy loss distributions (Poisson sampling, or none), or ``rdp``, Renyi divergences.

    Raises:
        UserError: a value is invalid, the accountant does not support the mechanism, or ``dp-accounting`` is missing.
    """
    check(mechanism, delta, accountant)
    check_value("privacy: noise_multiplier", noise_multiplier, NonNegative)
    return _epsilon(mechanism, float(noise_multiplier), delta, accountant) if noise_multiplier else math.inf


def noise_multiplier(mechanism: Mechanism, epsilon: float, delta: float, accountant: str = "pld") -> float:
    """Returns the smallest noise multiplier, up to 0.01 %, with which the rounds are (epsilon, delta)-private.

    With PLD this takes up to minutes. Raises what ``epsilon`` raises.
    """
    check(mechanism, delta, accountant)
    check_value("privacy: epsilon", epsilon, Positive)
    return _noise_multiplier(mechanism, float(epsilon), delta, accountant)


def check(mechanism: Mechanism, delta: float, accountant: str) -> None:
    """Raises UserError if a value is invalid or the accountant does not support the mechanism; computes nothing."""
    mechanism.check()
    check_value("privacy: delta", delta, Annotated[float, Fraction.__metadata__[0]])
    if not 0 < delta < 1:
        raise UserError(f"privacy: delta {delta:g}: expected a number between 0 and 1, below 1 / population")
    check_value("privacy: accountant", accountant, Annotated[str, ACCOUNTANTS])
    sampling = mechanism.sampling
    if accountant == "pld" and sampling == "without_replacement":
        raise UserError("privacy: accountant pld: it does not support sampling without replacement, expected rdp")
    if accountant == "rdp" and sampling == "poisson" and mechanism.places is not None:
        raise UserError("privacy: accountant rdp: it does not support cohorts with a limit of places, expected pld")
    if accountant == "rdp" and sampling == "poisson" and mechanism.neighbours == "replace":
        raise UserError("privacy: accountant rdp: it does not support Poisson sampling with neighbours='replace'")
    _library()


@functools.lru_cache(maxsize=256)
def _epsilon(mechanism, noise_multiplier, delta, accountant):
    event = _event(mechanism, accountant, noise_multiplier)
    return _accountant(mechanism, accountant)().compose(event).get_epsilon(delta)


@functools.lru_cache(maxsize=256)
def _noise_multiplier(mechanism, target, delta, accountant):
    """Searches on a logarithmic scale, from where the faster accountant finds it: little noise takes PLD long."""
    from scipy.optimize import brentq  # JAX needs it, too

    def excess(log_noise):
        return math.log(max(_epsilon(mechanism, math.exp(log_noise), delta, accountant), 1e-9) / target)

    start = 1.0
    if accountant == "pld":
        alike = dataclasses.replace(mechanism, places=None, neighbours="add_or_remove")
        start = _noise_multiplier(alike, target, delta, "rdp")
    low = high = math.log(start)
    while excess(high) > 0:
        low, high = high, high + _STEP
        if high > _MOST:
            raise UserError(f"privacy: epsilon {target:g}: no noise multiplier up to {math.exp(_MOST):g} is enough")
    while excess(low) <= 0:
        low, high = low - _STEP, low
        if low < -_MOST:
            return math.exp(high)
    found = brentq(excess, low, high, xtol=_PRECISION)
    while excess(found) > 0:
        found += _PRECISION
    return math.exp(found)


def _accountant(mechanism, accountant):
    """Returns the constructor of the accountant."""
    relation = _library().NeighboringRelation
    is_replaced = mechanism.neighbours == "replace"
    if accountant == "pld":
        from dp_accounting.pld import PLDAccountant

        return functools.partial(PLDAccountant, relation.REPLACE_ONE if is_replaced else relation.ADD_OR_REMOVE_ONE)
    from dp_accounting.rdp import RdpAccountant

    of_replaced = is_replaced and mechanism.sampling == "without_replacement"
    given = relation.REPLACE_ONE if of_replaced else relation.ADD_OR_REMOVE_ONE
    return functools.partial(RdpAccountant, neighboring_relation=given)


def _event(mechanism, accountant, noise_multiplier):
    """Returns the ``DpEvent`` of all rounds (``dp-accounting``)."""
    dp, q = _library(), mechanism.probability
    if accountant == "rdp" and mechanism.neighbours == "replace":
        noise_multiplier /= 2  # the sum changes by two clips, which this accountant does not know
    noise = dp.GaussianDpEvent(noise_multiplier)
    if mechanism.sampling == "without_replacement":
        noise = dp.SampledWithoutReplacementDpEvent(mechanism.population, int(mechanism.cohort), noise)
    elif mechanism.sampling == "poisson" and mechanism.places is not None:
        of_group = math.ceil(mechanism.population / mechanism.bands)  # the largest, of which most are dropped
        noise = dp.TruncatedSubsampledGaussianDpEvent(of_group, q, mechanism.places, noise_multiplier)
    elif mechanism.sampling == "poisson" and q < 1:
        noise = dp.PoissonSampledDpEvent(q, noise)
    return dp.SelfComposedDpEvent(noise, mechanism.releases)


def _library():
    """Returns ``dp_accounting``, which is imported only here, as it takes a second."""
    return installed("dp_accounting", "privacy", "privacy needs dp-accounting")
