"""The lowering of each convolution that is fastest on a device: chosen by its seconds, remembered, no other numbers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases

from experiments.configs import base
from experiments.study import groups
from fedjax_collapse import Model, nn
from fedjax_collapse.config.federations import federations
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.core.records import Batch
from fedjax_collapse.engine import timing
from fedjax_collapse.engine.timing import with_timed_lowerings
from fedjax_collapse.nn.inspection import convolutions, count_lowerings
from fedjax_collapse.nn.layers import Conv
from fedjax_collapse.nn.lowerings.convolution import TimedLowerings
from fedjax_collapse.nn.network import Network
from fedjax_collapse.schema.describe import describe

pytestmark = pytest.mark.slow

DEVICE = jax.devices("cpu")[0]
CACHED_SECONDS = timing._cached_seconds  # replaced in all other tests, which time nothing (conftest.py)
MODEL = Model(nn.SmallCNN(3, channels=(8, 32, 32)), (16, 16, 3))


@pytest.fixture(autouse=True)
def really_timed(monkeypatch):
    monkeypatch.setattr(timing, "_cached_seconds", CACHED_SECONDS)


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """What each lowering takes; the test may change it. Also the list of what was timed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    taken, timed = {"patches": 1.0, "strips": 1.0, "winograd2": 1.0, "winograd4": 1.0}, []

    def fake(lowering, device, free, layer, batch_size, clients, has_gradient):
        timed.append((layer.kernel, lowering, batch_size, clients, has_gradient))
        return lambda steps: steps * taken[lowering]

    monkeypatch.setattr(timing, "_compiled", fake)
    return taken, timed


def lowerings(model):
    return [lowering for _, lowering in convolutions(model, 16)]


def test_the_clearly_fastest_is_taken(seconds):
    """And the rule's stays where nothing is clearly faster."""
    taken, timed = seconds
    rule = ["strips", "winograd4", "winograd2"]
    assert lowerings(MODEL) == rule
    taken["winograd2"] = 0.5
    assert lowerings(with_timed_lowerings(MODEL, 16, 1, DEVICE)) == ["winograd2"] * 3
    assert {kernel[2]: has_gradient for kernel, *_, has_gradient in timed} == {3: False, 8: True, 32: True}
    taken.update(patches=0.95, winograd2=0.93)
    assert lowerings(with_timed_lowerings(MODEL, 16, 2, DEVICE)) == rule


def test_seconds_are_cached_by_layer_batch_and_clients(seconds, tmp_path):
    taken, timed = seconds
    shown = []

    @contextlib.contextmanager
    def wait(what, total):
        shown.append((what, total))
        yield lambda: shown.append(len(timed))

    for _ in range(2):  # the second time nothing is timed
        with_timed_lowerings(MODEL, 16, 1, DEVICE, wait=wait)
    line = "timing lowerings of 3 convolutions, once on this machine"
    assert shown == [(line, 3), 4, 8, 11, (line, 3), 11, 11, 11]
    count = len(timed)
    assert count == 4 + 4 + 3  # patches, two of Winograd, and strips for few channels
    taken["winograd2"] = 0.1
    assert lowerings(with_timed_lowerings(MODEL, 16, 1, DEVICE)) == ["strips", "winograd4", "winograd2"]
    assert len(timed) == count
    assert lowerings(with_timed_lowerings(MODEL, 16, 5, DEVICE)) == ["winograd2"] * 3
    assert len(timed) == 2 * count
    for damaged in tmp_path.rglob("*.json"):
        damaged.write_text("{")
    assert lowerings(with_timed_lowerings(MODEL, 16, 1, DEVICE)) == ["winograd2"] * 3
    assert len(timed) == 3 * count


def test_a_cache_that_cannot_be_written_is_a_warning(seconds, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    seconds[0]["winograd2"] = 0.1
    with pytest.warns(UserWarning, match="lowerings are not saved .*XDG_CACHE_HOME"):
        assert lowerings(with_timed_lowerings(MODEL, 16, 1, DEVICE)) == ["winograd2"] * 3


def test_batches_of_any_size_and_other_layers(seconds):
    """A table knows layers in batches of any size; a layer that it does not know takes the rule's lowering."""
    seconds[0]["patches"] = 0.1
    timed = with_timed_lowerings(MODEL, 16, 1, DEVICE)
    assert count_lowerings(timed, 64) == {"patches": 3}
    wider = MODEL.with_module(channels=(8, 32, 33), lowering=timed.module.lowering)
    assert lowerings(wider) == ["patches", "patches", "winograd2"]
    others = nn.MOONCNN(10, lowering=timed.module.lowering)
    assert lowerings(Model(others, (16, 16, 3))) == lowerings(Model(nn.MOONCNN(10), (16, 16, 3)))


class OwnNetwork(Network):
    """With a convolution of the library, and no field to choose its lowering by."""

    num_classes: int

    def represent(self, images, mask, train):
        return Conv(4, 3)(images).mean((1, 2))


@pytest.mark.parametrize("module", [nn.MLP(3), OwnNetwork(3)])
def test_a_network_without_convolutions_to_choose_stays_as_it_is(seconds, module):
    model = Model(module, (8, 8, 1))
    assert with_timed_lowerings(model, 16, 1, DEVICE) == model and not seconds[1]


@cases(1, 2)
def test_real_seconds(clients, monkeypatch, tmp_path):
    """Whatever is fastest here, the outputs are the same up to rounding."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "_SECONDS", 1e-4)
    timed = with_timed_lowerings(MODEL, 4, clients, DEVICE)
    assert isinstance(timed.module.lowering, TimedLowerings) and len(timed.module.lowering.timed) == 3
    variables = MODEL.init(jax.random.key(0))
    batch = Batch(jax.random.normal(jax.random.key(1), (4, 16, 16, 3)), jnp.arange(4) % 3, jnp.ones(4, bool))
    expected, actual = (model.apply(variables, batch, True)[0].logits for model in (MODEL, timed))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert describe(timed.module) == describe(MODEL.with_module(lowering=TimedLowerings(())).module)


@cases(("auto", 2**25, 0), ("auto", 10**5, 1), ("timed", 2**25, 2), ("rules", 0, 0))
def test_a_config_chooses(lowering, worthwhile, expected, seconds, monkeypatch):
    """By ``auto`` layers with less work than that are not timed: 73,728 and 589,824 multiply-adds on a batch here."""
    monkeypatch.setattr(groups, "WORTHWHILE", worthwhile)
    config = base.get_config()
    config.network = dict(name="small_cnn", channels=(4, 32), lowering=lowering)
    config.clients = 2
    values = plain(config)
    seconds[0]["patches"] = 0.1
    plan = groups.make_plan(values, federations(values, [0])[0])
    assert count_lowerings(plan.model, 32).get("patches", 0) == expected
    assert {entry[2:4] for entry in seconds[1]} == ({(32, 1)} if expected else set())  # batch size, clients at once


def test_what_disturbs_one_timing_disturbs_no_choice(seconds, monkeypatch):
    taken, timed = {"patches": iter([0.1, 1.0, 9.0, 0.5]), "winograd4": iter([0.1, 0.9, 0.8, 0.9])}, []

    def fake(lowering, *arguments):
        return lambda steps: timed.append(lowering) or next(taken[lowering])

    monkeypatch.setattr(timing, "_compiled", fake)
    monkeypatch.setattr(timing, "_TIMINGS", 2)
    assert timing._measure(["patches", "winograd4"], DEVICE) == {"patches": 0.5, "winograd4": 0.8}
    assert timed == ["patches", "winograd4"] * 4  # of which the first run does not count


def test_the_start_of_a_program_does_not_count(monkeypatch):
    """Measured on a GPU: it took as long as a dozen steps."""
    start, step = {"patches": 3.4e-3, "winograd4": 0.0}, {"patches": 2e-4, "winograd4": 3e-4}
    monkeypatch.setattr(timing, "_compiled", lambda name, *_: lambda steps: start[name] + steps * step[name])
    found = timing._measure(["patches", "winograd4"], DEVICE)
    assert found["patches"] < 2.2e-4 and found["winograd4"] == pytest.approx(3e-4)


@cases((10**9, ["patches", "winograd2"]), (240_000, ["winograd2"]), (0, []))
def test_what_does_not_fit_into_memory_is_not_timed(free, fitting, monkeypatch):
    layer = next(layer for layer, _ in convolutions(MODEL, 16) if layer.kernel == (3, 3, 32, 32))
    monkeypatch.setattr(timing, "_SECONDS", 1e-4)
    monkeypatch.setattr(timing, "free_bytes", lambda devices: free)
    assert list(timing._measure(["patches", "winograd2"], DEVICE, layer, 2, 1, True)) == fitting
