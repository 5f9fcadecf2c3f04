"""The model of rounds at scale, against numbers computed by hand, and its fit."""

import numpy as np
import pytest

from experiments.benchmarks.compiling.topologies import CHIPS
from experiments.research import scale
from experiments.research.scale import TRANSFORMER, Place, Step


def test_a_step_of_the_transformer():
    """91 MB and 3.8 GFLOP: 111 us on a v5e and 27 us on an H100, both by memory."""
    np.testing.assert_allclose(TRANSFORMER.seconds(CHIPS["v5e"]), 110.5e-6, rtol=1e-3)
    np.testing.assert_allclose(TRANSFORMER.seconds(CHIPS["h100"]), 27.0e-6, rtol=1e-3)
    assert {TRANSFORMER.bound(CHIPS[name]) for name in ("v5e", "h100")} == {"memory"}
    large = Step(params=1000, products=10**9, tokens=10**6, outputs=1)
    assert large.bound(CHIPS["h100"]) == "products"
    np.testing.assert_allclose(large.seconds(CHIPS["h100"]), 6e15 / CHIPS["h100"].peak)


def test_a_round():
    """1,000 clients on 8 chips are 125 one after another, four steps each."""
    place = Place("h100", 8, 450e9)
    parts = scale.round_seconds(TRANSFORMER, place, 1000, efficiency=0.3)
    np.testing.assert_allclose(parts["clients"], 125 * 4 * 27.0e-6 / 0.3, rtol=1e-3)
    np.testing.assert_allclose(parts["exchange"], 8 * 1_962_912 / 450e9)
    assert scale.round_seconds(TRANSFORMER, place, 1001, 0.3)["clients"] > parts["clients"]


def test_distinct_clients():
    """The transformer's study of StackOverflow sees nine tenths of the clients."""
    np.testing.assert_allclose(scale.touched(342_477, 400, 2000), 309_346, rtol=1e-3)
    np.testing.assert_allclose(scale.touched(10, 10, 1), 10 * (1 - np.exp(-1)))


def test_constants_are_found_again():
    """Of seconds that follow the model; a size that does not divide the devices counts as the next one that does."""
    cohorts = [8, 12, 32, 64]
    fitted = scale.fit(cohorts, [0.5 + 0.1 * rows for rows in (1, 2, 4, 8)], devices=8)
    np.testing.assert_allclose([fitted.launch, fitted.client], [0.5, 0.1])
    np.testing.assert_allclose(fitted.errors, 0, atol=1e-12)


def test_exchanged_bytes_are_those_of_results():
    program = """
      %all-reduce = (f32[2,3]{1,0}, bf16[4]{0}, /*index=2*/f32[]) all-reduce(%a, %b, %c), channel_id=1
      %start = f32[5]{0} all-reduce-start(%d)
      %done = f32[5]{0} all-reduce-done(%start)
      %part = f32[2,3]{1,0} get-tuple-element(%all-reduce), index=0
    """
    assert scale.exchanged_bytes(program) == 24 + 8 + 4 + 20


def test_the_command(capsys):
    assert scale.main(["--efficiency=0.5"]) == 0
    head, _, *rows = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head.startswith("| clients | cohort | chips | ms a round |") and len(rows) == 8
    assert rows[0].startswith("| 1,000,000 | 1,000 | 8 h100 | 28 | clients, memory | 56 s | 1.85 MB |")


@pytest.mark.slow
def test_measured_rounds_exchange_the_model_and_numbers_alone():
    """Of the upload, once, and three numbers for each client of the cohort; a watched model is no part of a round."""
    timed = scale.measure(devices=2, cohort=4, repetitions=1)
    assert timed.exchanged == timed.upload + 3 * 4 * 4
    assert timed.seconds > 0
