"""The cost of a round with millions of clients on hundreds of chips: computed, not measured.

    client-step    the larger of (20 P + 16 B T V) / bandwidth and 6 M B T / operations per second
    round          ceil(cohort / chips) * steps * client-step / efficiency + 8 P / exchange + launch

P are the params: a step reads weights twice, writes and reads their gradient, and writes the new weights. B T V are
the logits of a batch, which it moves four times; M are the multiplications of a token. A ring of chips moves the 4 P
bytes of the mean upload twice. The efficiency is the share of the bound that a chip reaches, an assumption. Chips are
as their vendors describe them.
"""

import math
from typing import NamedTuple

import pandas as pd


class Step(NamedTuple):
    """A local step of one client."""

    params: int
    products: int  # multiplications of a token, forwards
    tokens: int  # of a batch
    outputs: int  # logits of a token


class Place(NamedTuple):
    """A number of chips of one kind."""

    chip: str
    count: int
    bandwidth: float  # bytes per second, of a chip's memory
    peak: float  # of a chip: operations per second of float32 products in JAX's default precision, without sparsity
    exchange: float  # bytes per second, of an all-reduce over all of them


TRANSFORMER = Step(params=1_962_912, products=1_970_000, tokens=16 * 20, outputs=10_004)  # pfl-research's, batch of 16
STEPS = 4  # of a client in a round
ROW, ROWS = 42, 44  # bytes of a sentence of 21 int16, and the mean number of sentences of a client in a round
SENTENCES = 43  # that a client has on disk, in the mean
LAUNCH = 1e-3  # seconds between rounds
PLACES = (Place("h100", 8, 3.35e12, 494.7e12, 450e9), Place("v5e", 256, 819e9, 197e12, 160e9))
CASES = ((1_000_000, 1_000), (10_000_000, 5_000), (100_000_000, 10_000), (100_000_000, 50_000))  # clients, cohort


def step_seconds(step: Step, place: Place) -> dict[str, float]:
    """Returns the least seconds of a client's step on a chip, by its memory and by its products: the larger holds."""
    moved = 20 * step.params + 16 * step.tokens * step.outputs
    return {"memory": moved / place.bandwidth, "products": 6 * step.products * step.tokens / place.peak}


def round_seconds(step: Step, place: Place, cohort: int, efficiency: float) -> dict[str, float]:
    """Returns the parts of a round's seconds: of clients, of the exchange, and of its launch."""
    clients = math.ceil(cohort / place.count) * STEPS * max(step_seconds(step, place).values()) / efficiency
    return {"clients": clients, "exchange": 8 * step.params / place.exchange, "launch": LAUNCH}


def touched(clients: int, cohort: int, rounds: int) -> float:
    """Returns how many distinct clients have been in a cohort after so many rounds, in expectation."""
    return -clients * math.expm1(-cohort * rounds / clients)


def table(efficiency: float = 0.3) -> pd.DataFrame:
    """Returns a row for each federation of ``CASES`` and each of ``PLACES``, with ``TRANSFORMER``.

    Columns are the seconds of a round and the part that takes most; the bytes that a round reads and sends to each
    chip; the bytes of all sentences on disk and their index; and of SCAFFOLD's client states after 2,000 rounds.
    """
    rows = []
    for (clients, cohort), place in ((case, place) for case in CASES for place in PLACES):
        bounds, seconds = step_seconds(TRANSFORMER, place), round_seconds(TRANSFORMER, place, cohort, efficiency)
        row = {"clients": clients, "cohort": cohort, "chips": place.count, "chip": place.chip}
        row |= {"seconds": sum(seconds.values()), "largest": max(seconds, key=seconds.get)}
        row |= {"bound": max(bounds, key=bounds.get), "read": cohort * ROWS * ROW}
        row |= {"sent": math.ceil(cohort / place.count) * ROWS * ROW, "on_disk": clients * SENTENCES * ROW}
        states = 4 * TRANSFORMER.params * touched(clients, cohort, 2000)
        rows.append(row | {"index": 8 * clients, "states": states})
    return pd.DataFrame(rows)
