"""The formula of rounds at scale, against numbers computed by hand."""

import numpy as np

from experiments.benchmarks.compiling.topologies import CHIPS
from fedjax_collapse.training import scale
from fedjax_collapse.training.scale import TRANSFORMER, Step

H100, V5E = scale.PLACES


def test_a_step_of_the_transformer():
    """91 MB and 3.8 GFLOP: 111 us on a v5e and 27 us on an H100, both by memory."""
    for place, memory, peak in ((V5E, 110.5e-6, 197e12), (H100, 27.0e-6, 494.7e12)):
        assert (place.bandwidth, place.peak) == (CHIPS[place.chip].bandwidth, peak)
        bounds = scale.step_seconds(TRANSFORMER, place)
        np.testing.assert_allclose(max(bounds.values()), memory, rtol=1e-3)
        assert bounds["memory"] == max(bounds.values())
    large = scale.step_seconds(Step(params=1000, products=10**9, tokens=10**6, outputs=1), H100)
    np.testing.assert_allclose(large["products"], 6e15 / H100.peak)


def test_a_round():
    """1,000 clients on 8 chips are 125 one after another, four steps each; one more is another one."""
    parts = scale.round_seconds(TRANSFORMER, H100, 1000, efficiency=0.3)
    np.testing.assert_allclose(parts["clients"], 125 * 4 * 27.0e-6 / 0.3, rtol=1e-3)
    np.testing.assert_allclose(parts["exchange"], 8 * 1_962_912 / 450e9)
    assert scale.round_seconds(TRANSFORMER, H100, 1001, 0.3)["clients"] > parts["clients"]


def test_distinct_clients():
    """The transformer's study of StackOverflow sees nine tenths of the clients."""
    np.testing.assert_allclose(scale.touched(342_477, 400, 2000), 309_346, rtol=1e-3)
    np.testing.assert_allclose(scale.touched(10, 10, 1), 10 * (1 - np.exp(-1)))


def test_the_table():
    table = scale.table(efficiency=0.5)
    assert len(table) == 8
    first = table.loc[0, ["clients", "cohort", "chips", "chip", "largest", "bound", "read"]].tolist()
    assert first == [1_000_000, 1000, 8, "h100", "clients", "memory", 1_848_000]
    np.testing.assert_allclose(table.loc[0, "seconds"], 0.02804, rtol=1e-3)
