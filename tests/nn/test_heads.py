"""Heads: the simplex, a head as a part of its network, and how configs and methods find one."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import assert_same_bits, check, one_line, run_at_once
from small_studies import start, write_config
from tiny_networks import TINY, tiny_model

from experiments import launch
from fedjax_collapse import FedAvg, FedUV, LocalTraining, Model, load_run, nn
from fedjax_collapse.config import build
from fedjax_collapse.config.resolving import resolve_arm
from fedjax_collapse.core import masks
from fedjax_collapse.methods.classifier.fedetf import FedETF
from fedjax_collapse.nn.heads import ETF, Linear, Simplex, simplex, simplex_frame
from fedjax_collapse.schema.options import with_options

pytestmark = pytest.mark.slow

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9)
ONLY_SIMPLEX = with_options(ETF, projector_dim=0)


def test_the_simplex():
    matrix = np.array([[1.0, 2, 0], [0, 1, 1], [2, 0, 1]])
    expected = [
        [0.1317534188, -0.2767069112, 0.1449534924],
        [-0.1571435543, -0.7547578590, 0.9119014133],
        [-0.9787476386, 0.5947889202, 0.3839587184],
    ]
    np.testing.assert_allclose(simplex_frame(matrix), expected, atol=1e-10)
    frames = [simplex._frame(*shape) for shape in ((2, 2, 0), (9, 4, 0), (9, 4, 1), (100, 100, 0))]
    for frame in frames:
        num_classes = frame.shape[1]
        cosines = np.where(np.eye(num_classes), 1, -1 / (num_classes - 1))
        np.testing.assert_allclose(frame.T @ frame, cosines, atol=1e-13)
    assert np.abs(frames[1] - frames[2]).max() > 0.1


def test_a_head_is_a_part_of_the_network(federation):
    """Projector and scale are trained, shared, private or frozen as a whole; the simplex has no params."""
    model = Model(nn.MLP(4, hidden=(6,), head=with_options(ETF, scale=10.0)), federation.input_shape)
    start = model.init(jax.random.key(0))
    head = {"params/head/Dense_0/kernel", "params/head/Dense_0/bias", "params/head/scale"}
    assert masks.select(model.mask("head"), start).keys() == head and start.params["head"]["scale"] == 10
    assert model.initial_shapes().features.shape == (1, 6)
    run = functools.partial(run_at_once, federation, model, variables=start)
    methods = {"fedetf": FedETF(), "feduv": FedUV(0.1, 0.1)}
    frozen = run(FedAvg(TRAINING.replace(freeze="head"), methods)).variables.params
    assert_same_bits(frozen["head"], start.params["head"])
    assert np.any(frozen["Dense_0"]["kernel"] != start.params["Dense_0"]["kernel"])
    private = run(FedAvg(TRAINING, methods, private="head"))
    assert private.state.clients.private["params/head/scale"].shape == (5,)
    assert_same_bits(private.state.server.variables.params["head"], start.params["head"])
    assert np.isfinite(private.clients["feduv/variance"]).all() and np.all(private.clients["feduv/uniformity"] > 0)


def head_shapes(model):
    """Shapes of the params of its head, by path."""
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    assert model.initial_shapes().logits.shape == (1, 4)
    return masks.select(model.mask("head").params, params)


@pytest.mark.parametrize("name", TINY)
def test_every_network_takes_every_head(name):
    trained = {"head/Dense_0/kernel", "head/Dense_0/bias", "head/scale"}
    assert head_shapes(tiny_model(name, head=ETF)).keys() == trained


def test_options_of_heads(federation):
    """The linear one is the network's own layer, to the same bits under each name."""
    first, second, without_bias, fixed, cosines = (
        Model(nn.ResNet20(4, blocks=(1,), strides=(1,), kernel_init="kaiming_fan_in", head=head), (8, 8, 2))
        for head in ("linear", Linear, with_options(Linear, use_bias=False), ONLY_SIMPLEX, Simplex)
    )
    key = jax.random.key(0)
    assert_same_bits(first.init(key), second.init(key))
    assert list(head_shapes(first)) == ["Dense_0/bias", "Dense_0/kernel"]
    assert list(head_shapes(without_bias)) == ["Dense_0/kernel"] and list(head_shapes(fixed)) == ["head/scale"]
    check("part head: the network has no such layer", cosines.mask, "head")
    assert fixed == fixed.with_module(head=with_options(ETF, projector_dim=0))


def test_a_config_names_heads(tmp_path, monkeypatch):
    """A run whose network has a head with options continues, and is loaded again; an arm has another head."""
    monkeypatch.chdir(tmp_path)
    config = write_config(
        tmp_path,
        "config.network = dict(name='mlp', hidden=(6,), head=dict(name='etf', scale=10.0))",
        "etf = dict(methods=dict(fedetf=dict(), feddecorr=dict()))",
        "config.arms = dict(etf=etf, linear=dict(network=dict(head='linear')))",
    )
    study = [config, f"--workdir={tmp_path / 'study'}", "--arm=etf"]
    assert start(*study) == start(*study) == 0
    run = load_run(tmp_path / "study" / "etf" / "seed0")
    assert run.model.module.head == with_options(ETF, scale=10.0) and "scale" in run.variables.params["head"]
    described = json.loads((tmp_path / "study" / "etf" / "seed0" / "run.json").read_text())["model"]["module"]
    assert described["head"]["options"] == [["scale", 10.0]]
    config = resolve_arm(launch.parse(study).config, "linear")
    assert build.model(config, run.federation).module.head is Linear


def test_options_of_a_head_on_the_command_line():
    config = f"--config={Path(launch.__file__).parent / 'configs' / 'quickstart.py'}"
    given = launch.parse([config, "--config.network.head.name=etf", "--config.network.head.scale=10"]).config
    assert given["network"]["head"] == dict(name="etf", scale=10)
    message = "--config.network.head=etf has no scale: give --config.network.head.name=etf next to its options"
    with one_line(message.replace(".", "[.]")):
        launch.parse([config, "--config.network.head=etf", "--config.network.head.scale=10"])
