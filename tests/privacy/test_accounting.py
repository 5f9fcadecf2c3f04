"""What rounds spend and how much noise a budget needs, against numbers that were computed independently."""

import re
import sys

import pytest
from conftest import cases, check

from fedjax_collapse.run.privacy import Mechanism, epsilon, noise_multiplier
from fedjax_collapse.run.privacy.accounting import _library

REPLACE = dict(sampling="without_replacement", neighbours="replace")
IN_GROUPS = "population 10: expected at least the 2 clients of a round in each of 9 groups"
TABLE = [  # z, cohort, population, rounds, delta; Poisson by RDP and by PLD, one replaced by PLD, without replacement
    (1.0, 50, 1000, 500, 1e-5, 8.3016, 7.5237, 12.144, 130.81),
    (0.8, 400, 342_477, 2000, 1e-6, 1.5698, 0.65412, 0.74899, 15.254),
    (1.0, 1000, 100_000, 1500, 1e-6, 2.8580, 2.5684, 4.0053, 28.720),
    (0.6, 5000, 1_000_000, 2000, 1e-6, 7.4023, 6.3526, 7.2628, 2950.7),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[1]} of {row[2]}")
def test_all_samplings_and_accountants(row):
    """Without replacement half of the noise multiplier is accounted for: of one replaced, two clips change."""
    z, cohort, population, rounds, delta, *expected = row

    def of(accountant, **options):
        return epsilon(Mechanism(population, cohort, rounds, **options), z, delta, accountant)

    found = of("rdp"), of("pld"), of("pld", neighbours="replace"), of("rdp", **REPLACE)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_replaced_client_changes_two_clips():
    """As much as half of the noise would for one that is added, by each accountant in its way."""
    for accountant in ("pld", "rdp"):
        replaced, added = Mechanism(9, 9, 1, "none", neighbours="replace"), Mechanism(9, 9, 1, "none")
        assert epsilon(replaced, 2.0, 1e-5, accountant) == pytest.approx(epsilon(added, 1.0, 1e-5, accountant))
    assert epsilon(replaced, 2.0, 1e-5) == pytest.approx(4.377, abs=1e-3)


def test_everyone_in_every_round():
    mechanism = Mechanism(100, 100, 500, "none")
    assert epsilon(mechanism, 10.0, 1e-5) == pytest.approx(11.480, abs=1e-3)
    assert epsilon(Mechanism(100, 100, 500), 10.0, 1e-5) == epsilon(mechanism, 10.0, 1e-5)
    assert epsilon(mechanism, 0.0, 1e-5) == float("inf")


def test_a_limit_of_places():
    """A limit that is the mean costs much."""
    assert epsilon(Mechanism(1000, 50, 500, places=50), 1.0, 1e-5) == pytest.approx(30.61, rel=1e-4)


@pytest.mark.slow
def test_a_limit_that_is_hardly_reached():
    assert epsilon(Mechanism(1000, 50, 500, places=80), 1.0, 1e-5) == pytest.approx(7.5476, rel=1e-4)


def test_correlated_noise():
    """A client is drawn from its group, with as many times the probability as there are groups."""
    mechanism = Mechanism(342_477, 400, 2000, bands=50)
    assert mechanism.probability == pytest.approx(50 * 400 / 342_477) and mechanism.releases == 40
    assert epsilon(mechanism, 0.8, 1e-6) == pytest.approx(5.60, abs=0.01)


def test_a_limit_is_of_the_largest_group():
    """Seven clients in three groups: one of these has three clients for two places, as all have of nine clients."""
    of_seven, of_nine = (Mechanism(count, count / 6, 3, places=2, bands=3) for count in (7, 9))
    assert epsilon(of_seven, 3.0, 1e-2) == epsilon(of_nine, 3.0, 1e-2) > 0.4


@cases(((1000, 50, 1500), 4.7189), ((342_477, 400, 2000), 0.73015))
def test_noise_by_rdp(sizes, rdp):
    mechanism = Mechanism(*sizes)
    found = noise_multiplier(mechanism, 2.0, 1e-6, "rdp")
    assert found == pytest.approx(rdp, rel=5e-4) and epsilon(mechanism, found, 1e-6, "rdp") <= 2


def test_noise_by_pld():
    mechanism = Mechanism(1000, 50, 1500)
    found = noise_multiplier(mechanism, 2.0, 1e-6)
    assert found == pytest.approx(4.4225, rel=2e-4) and epsilon(mechanism, found, 1e-6) <= 2


@cases(
        (Mechanism(0, 1, 1), {}, "privacy: population 0 is too small"),
        (Mechanism(10, 20, 1), {}, "privacy: population 10: expected at least the 20 clients of a round"),
        (Mechanism(10, 2, 9, bands=9), {}, IN_GROUPS),
        (Mechanism(9, 3, 1, "without_replacement"), {}, "only accounted for with neighbours='replace'"),
        (Mechanism(9, 3, 1, **REPLACE), {}, "accountant pld: it does not support sampling without"),
        (Mechanism(9, 3, 1, places=4), dict(accountant="rdp"), "rdp: it does not support cohorts with a limit"),
        (Mechanism(9, 3, 1, neighbours="replace"), dict(accountant="rdp"), "rdp: it does not support Poisson sampling"),
        (Mechanism(9, 3, 1, "none", places=4), {}, "privacy: none sampling: expected poisson with places"),
        (Mechanism(9, 3, 1), dict(delta=0.0), "privacy: delta 0: expected a number between 0 and 1"),
    )  # fmt: skip
def test_wrong_input(mechanism, options, message):
    check(re.escape(message), epsilon, mechanism, **{"noise_multiplier": 1.0, "delta": 1e-5} | options)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    check(r'pip install "fedjax_collapse\[privacy\]"', _library)
