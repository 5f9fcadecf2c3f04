"""A wrong argument of a call of the library is one line, a UserError that names it and says what was expected."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import cases, check
from flax import linen

import fedjax_collapse as fc
from fedjax_collapse import FedAvg, FedDecorr, Federation, LocalTraining, Model, Task, Variables, engine, nn, partition
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.simulation import Options
from fedjax_collapse.schema.options import constructor

NAN = float("nan")
KEY, NET, SHAPE = jax.random.key(0), nn.MLP(4, hidden=(3,)), (8, 8, 2)
PARAMS = Model(NET, SHAPE).init(KEY)


class NoCall(linen.Module):
    pass


class OtherCall(linen.Module):
    def __call__(self, inputs):
        return inputs


class OtherHooks(fc.Method):
    def upload(self, update):
        return update


class OtherDraw(engine.Uniform):
    def draw(self, sizes):
        return sizes


class Raises(linen.Module):
    def __call__(self, inputs, mask, train):
        raise RuntimeError("too\nbad")


class NoOutputs(linen.Module):
    @linen.compact
    def __call__(self, inputs, mask, train):
        return linen.Dense(4)(inputs.reshape(len(inputs), -1))


def changed(function):
    """The parameters, each changed."""
    return jax.tree.map(function, PARAMS)


SIMULATE = [
    (dict(federation=lambda given: given._replace(class_names=None)), "class_names None: expected tuple"),
    (dict(key=jax.random.split(KEY)), r"simulate: key .*: expected one key, such as jax.random.key\(0\)"),
    (dict(variables=Variables({}, {})), r"variables: params/Dense_0/bias is not there, expected float32\[3\]"),
    (dict(variables=Variables(PARAMS.params, {"a": np.ones(3)})), r"batch_stats/a is .*, expected not there"),
    (dict(variables=changed(lambda leaf: leaf[None])), r"Dense_0/bias is float32\[1, 3\], expected float32\[3\]"),
    (dict(variables=changed(lambda leaf: leaf / 0)), "variables: params/Dense_0/bias has NaN, infinity or .*expected"),
    (dict(folder="a\0b"), "folder a\0b: cannot be made .*null byte"),
    (dict(folder=__file__), r"folder .*: cannot be made \(.*File exists"),
    (dict(folder="a" * 300), r"folder a*: cannot be made \(.*File name too long"),
    (dict(measurements={"a": lambda view: [[1], [1, 2]]}), "measurement a: list is no array"),
    (dict(measurements={"a": lambda: 1}), r"measurement a: it is <lambda>\(\), expected <lambda>\(view\)"),
    (dict(participation=fc.Participation(0.5, OtherDraw())), r"it is draw\(sizes\), expected draw\(key, sizes,"),
    (dict(participation=0.0), "fraction 0 is outside"),
    (dict(partcipation=0.5), "simulate 'partcipation': did you mean 'participation'. expected one of .*watch"),
    (dict(fraction=0.5), "unknown option of simulate 'fraction': did you mean 'participation'"),
    (dict(on_nan="skip_client", client_map=engine.Loop()), "on_nan 'skip_client': the debug layout stops"),
]

MODELS = [
    (lambda: Model(NET, (-8, 8, 2)), r"Model: input_shape .*: -8 is too small"),
    (lambda: Model(NET, ()), r"Model: input_shape \(\) is empty"),
    (lambda: Model(NET, SHAPE, lambda: 1), r"Model: reinitialize \(TypeError\): .*0 positional"),
    (lambda: Model(NET, SHAPE, lambda *all: None), "Model: reinitialize: it returned None: expected Variables"),
    (
        lambda: Model(NET, SHAPE, reinitialize=lambda model, variables, key: changed(lambda leaf: leaf * NAN)),
        "Model.init: params/Dense_0/bias has NaN, infinity or .*expected finite weights",
    ),
    (lambda: Model(NET, SHAPE, task=fc.REGRESSION), "network: predictions .* of labels .*, expected equal numbers"),
    (lambda: Model(NET, SHAPE, task=Task(lambda *all: None, len)), "loss of the task: it returned NoneType, expected"),
    (lambda: Model(NET, SHAPE, input_dtype="abc"), "Model: input_dtype 'abc': expected a type of real numbers"),
    (lambda: Model(NoCall(), SHAPE), r"network NoCall, called as module\(inputs \[batch, 8, 8, 2\], .*"),
    (lambda: Model(OtherCall(), SHAPE), r"OtherCall: it is __call__\(.*\), expected __call__\(inputs, mask, train\)"),
    (lambda: Model(Raises(), SHAPE), r"network Raises, .* \(RuntimeError, .*test_library_calls.py:\d+\): too bad"),
    (lambda: Model(NoOutputs(), SHAPE), "network NoOutputs: it returns no features"),
    (lambda: Model(nn.MLP(4, hidden=("a",)), SHAPE), r"MLP: hidden \('a',\): 'a': expected int"),
]


def adam(**options):
    return LocalTraining(momentum=0.0, optimizer=constructor(optax.adam, **options))


ALGORITHMS = [
    (lambda: FedAvg(LocalTraining(), FedDecorr()), "FedAvg: methods FedDecorr.*: expected Mapping, got FedDecorr"),
    (lambda: FedAvg(methods={"a": FedDecorr}), "FedAvg: methods a: .*: expected Method, got type"),
    (lambda: FedAvg(server_optimizer=constructor(optax.adam, learning_rate="a")), "server_optimizer cannot be made"),
    (lambda: FedAvg(server_optimizer=constructor(optax.sgd, learning_rate=jnp.ones(3))), "server_optimizer .*shape"),
    (lambda: FedAvg(adam(b1=jnp.ones(3))), "LocalTraining: optimizer"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda: 1.0)), r"task_loss: it is <lambda>\(\), expected <lambda>\(view\)"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda view: None)), "training.task_loss: it returned NoneType, expected"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda view: view.outputs.logits)), r"it returned float32\[\d+, 4\],"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda view: 1 / 0)), r"task_loss \(ZeroDivisionError, .*:\d+\): division"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda: 1)), r"augmentation: it is .*, expected <lambda>\(image, key\)"),
    (lambda: FedAvg(methods={"a": OtherHooks()}), r"method a: upload: it is upload\(update\), expected"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda image, key: None)), "augmentation: it returned NoneType"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda image, key: image[0])), "model: its inputs have shape"),
]

OTHERS = [
    (lambda: engine.Vectorized(3), "Vectorized: on 3: expected tuple, got int"),
    (lambda: engine.Chunked(2, on=("cpu",)), r"Chunked: on \('cpu',\): 'cpu': expected Device, got str"),
    (lambda: engine.Sharded(2, 3), "Sharded: inner 3: expected ClientMap"),
    (lambda: partition.iid("abc", 3), "iid: labels 'abc': expected an array, got str"),
    (lambda: Model(nn.SmallCNN(4), (3,)).init(KEY), "SmallCNN: it takes images of height, width and channels, not inp"),
    (lambda: partition.dirichlet(np.ones(9), 3, 0.1), "dirichlet: labels an array of float64, expected int"),
    (lambda: partition.dirichlet(np.ones((9, 9), int), 3, 0.1), r"labels an array of shape \(9, 9\), expected \["),
    (lambda: partition.dirichlet(np.arange(9), 3, np.ones(9)), "alpha .*: expected float, got an array of shape"),
    (lambda: Model(NET, SHAPE).init(3), "Model.init: key 3: expected Array, got int"),
    (lambda: Model(NET, SHAPE).mask(3), "network: part 3: expected str, got int"),
    (lambda: evaluate(Model(NET, SHAPE), PARAMS, None), "evaluate: examples None: expected Examples"),
]


@pytest.fixture
def call(federation):
    """``simulate`` with arguments of which some are others."""

    def simulate_with(**given):
        usual = dict(federation=federation, model=Model(NET, SHAPE), algorithm=FedAvg(), rounds=1, key=KEY)
        arguments = usual | given
        if callable(arguments["federation"]):
            arguments["federation"] = arguments["federation"](federation)
        return fc.simulate(**arguments)

    return simulate_with


@cases(*SIMULATE)
def test_arguments_of_simulate(given, message, call):
    check(message, call, **given)


@pytest.mark.parametrize("name", ["federation", "model", "algorithm", "rounds", "key", *Options.__annotations__])
def test_no_argument_of_simulate_takes_what_it_is_not(call, name):
    for value in (object(), 1j, [{}], jnp.ones((2, 2)) / 3):
        check(rf"{name}\b.*expected", call, **{name: value})


@cases(*MODELS)
def test_models(make, message, call):
    check(message, lambda: call(model=make()))


@cases(*ALGORITHMS)
def test_algorithms(make, message, call):
    check(message, lambda: call(algorithm=make()))


@cases(*OTHERS)
def test_other_calls(make, message):
    check(message, make)


@pytest.mark.parametrize("name", inspect.signature(Federation.from_arrays).parameters)
def test_arguments_of_a_federation(name):
    """What one would not mistake for the right thing."""
    images, labels = np.zeros((4, 2, 2, 1), np.uint8), np.arange(4) % 2
    images[0] = 1
    usual = dict(images=images, labels=labels, partition=[[0, 1], [2, 3]], test_images=images, test_labels=labels)
    for value in (KEY, object(), {}, 1j, lambda: 3, "a"):
        check("", Federation.from_arrays, **usual | {name: value})
