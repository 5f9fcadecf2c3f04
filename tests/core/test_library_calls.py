"""A wrong argument of a call of the library is one line, a UserError that names it and says what was expected."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from fedjax_collapse import (
    REGRESSION,
    FedAvg,
    FedDecorr,
    Federation,
    FedProx,
    LocalTraining,
    Method,
    Model,
    Participation,
    Task,
    UserError,
    Variables,
    engine,
    methods,
    nn,
    partition,
    simulate,
)
from fedjax_collapse.core import discovery
from fedjax_collapse.core.options import constructor
from fedjax_collapse.simulation.evaluation import evaluate

NAN = float("nan")
KEY, NET, SHAPE = jax.random.key(0), nn.MLP(4, hidden=(3,)), (8, 8, 2)
PARAMS = Model(NET, SHAPE).init(KEY)


class NoCall(linen.Module):
    pass


class OtherCall(linen.Module):
    def __call__(self, inputs):
        return inputs


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
    (dict(federation=None), "simulate: federation None: expected Federation, got NoneType"),
    (dict(federation={"images": 3}), "simulate: federation .*: expected Federation, got dict"),
    (dict(federation=lambda given: given._replace(train=None)), "federation: train None: expected Examples"),
    (dict(federation=lambda given: given._replace(test=3)), "federation: test 3: expected Examples"),
    (dict(federation=lambda given: given._replace(domains=3)), "federation: domains 3: expected Domains"),
    (dict(federation=lambda given: given._replace(class_names=None)), "class_names None: expected tuple"),
    (dict(model=None), "simulate: model None: expected Model, got NoneType"),
    (dict(model=NET), "simulate: model MLP.*: expected Model, got MLP"),
    (dict(model=Model), "simulate: model <class .*: expected Model, got type"),
    (dict(algorithm=None), "simulate: algorithm None: expected FedAvg"),
    (dict(algorithm=LocalTraining()), "simulate: algorithm .*: expected FedAvg, got LocalTraining"),
    (dict(algorithm=FedProx(0.1)), "simulate: algorithm .*: expected FedAvg, got FedProx"),
    (dict(algorithm=FedAvg), "simulate: algorithm .*: expected FedAvg, got type"),
    (dict(key=0), "simulate: key 0: expected Array, got int"),
    (dict(key=None), "simulate: key None: expected Array"),
    (dict(key=jax.random.split(KEY)), r"simulate: key .*: expected one key, such as jax.random.key\(0\)"),
    (dict(key=np.zeros(2)), "simulate: key .*: expected one key"),
    (dict(key=jnp.float32(0)), "simulate: key .*: expected one key"),
    (dict(rounds=None), "rounds None: expected int, got NoneType"),
    (dict(rounds=jnp.ones(2)), "rounds .*: expected int, got an array of float32"),
    (dict(rounds=KEY), "rounds .*: expected int, got an array of key"),
    (dict(variables={}), "simulate: variables {}: expected Variables, got dict"),
    (dict(variables=(PARAMS.params, {})), "simulate: variables .*: expected Variables, got tuple"),
    (dict(variables=Variables(None, {})), "variables: params None: expected Mapping"),
    (dict(variables=Variables({}, {})), r"variables: params/Dense_0/bias is not there, expected float32\[3\]"),
    (dict(variables=Variables(PARAMS.params, {"a": np.ones(3)})), r"batch_stats/a is .*, expected not there"),
    (dict(variables=changed(lambda leaf: leaf[None])), r"Dense_0/bias is float32\[1, 3\], expected float32\[3\]"),
    (dict(variables=changed(lambda leaf: leaf.astype(int))), r"is int32\[3\], expected float32\[3\]"),
    (dict(variables=changed(lambda leaf: leaf.astype(jnp.bfloat16))), r"is bfloat16\[3\], expected float32\[3\]"),
    (dict(variables=changed(lambda leaf: "a")), r"is of type str, expected float32\[3\]"),
    (dict(folder=3), "simulate: folder 3: expected Path"),
    (dict(folder=b"a"), "simulate: folder b'a': expected Path"),
    (dict(folder="a\0b"), "folder a\0b: cannot be made .*null byte"),
    (dict(folder=__file__), r"folder .*: cannot be made \(.*File exists"),
    (dict(folder=f"{__file__}/a"), r"folder .*: cannot be made \(.*Not a directory"),
    (dict(folder="a" * 300), r"folder a*: cannot be made \(.*File name too long"),
    (dict(listener=3), "simulate: listener 3: expected a function, got int"),
    (dict(should_stop=True), "simulate: should_stop True: expected a function, got bool"),
    (dict(measurements=[("a", len)]), "simulate: measurements .*: expected Mapping, got list"),
    (dict(measurements=len), "simulate: measurements .*: expected Mapping"),
    (dict(measurements={3: len}), "simulate: measurements 3: expected str"),
    (dict(measurements={"a": 3}), "simulate: measurements a: 3: expected a function, got int"),
    (dict(measurements={"a": lambda view: [[1], [1, 2]]}), "measurement a: list is no array"),
    (dict(client_map="vectorized"), "simulate: client_map 'vectorized': expected ClientMap, got str"),
    (dict(client_map=engine.Vectorized), "simulate: client_map .*: expected ClientMap, got type"),
    (dict(storage=["host"]), "simulate: storage .*: expected str, got list"),
    (dict(participation="all"), "participation 'all': expected float, got str"),
    (dict(watch=("a",)), "watch .*: expected"),
]

MODELS = [
    (lambda: Model(None, SHAPE), "Model: module None: expected Module, got NoneType"),
    (lambda: Model(nn.MLP, SHAPE), "Model: module .*: expected Module, got type"),
    (lambda: Model(NET, 5), "Model: input_shape 5: expected tuple, got int"),
    (lambda: Model(NET, (8, 8, "2")), r"Model: input_shape \(8, 8, '2'\): '2': expected int"),
    (lambda: Model(NET, (8, 8.0, 2)), r"Model: input_shape .*: 8: expected int, got float"),
    (lambda: Model(NET, (-8, 8, 2)), r"Model: input_shape .*: -8 is too small"),
    (lambda: Model(NET, ()), r"Model: input_shape \(\) is empty"),
    (lambda: Model(NET, SHAPE, reinitialize=3), "Model: reinitialize 3: expected a function"),
    (lambda: Model(NET, SHAPE, lambda: 1), r"Model: reinitialize \(TypeError\): .*0 positional"),
    (lambda: Model(NET, SHAPE, lambda *all: None), "Model: reinitialize: it returned None: expected Variables"),
    (lambda: Model(NET, SHAPE, task="a"), "Model: task 'a': expected Task"),
    (lambda: Model(NET, SHAPE, task=Task(3, len)), "Task: loss 3: expected a function"),
    (lambda: Model(NET, SHAPE, task=REGRESSION), "network: predictions .* of labels .*, expected as many numbers"),
    (lambda: Model(NET, SHAPE, task=Task(lambda *all: None, len)), "loss of the task: it returned NoneType, expected"),
    (lambda: Model(NET, SHAPE, input_dtype="abc"), "Model: input_dtype 'abc': expected a type of real numbers"),
    (lambda: Model(NET, SHAPE, input_dtype=complex), "Model: input_dtype .*complex.*: expected a type of real numbers"),
    (lambda: Model(NET, SHAPE, input_dtype=None), "Model: input_dtype None: expected a type of real numbers"),
    (
        lambda: Model(NoCall(), SHAPE),
        r"network NoCall, called as module\(inputs \[batch, 8, 8, 2\], .* \(AttributeError",
    ),
    (lambda: Model(OtherCall(), SHAPE), "network OtherCall, called as module.*unexpected keyword argument 'train'"),
    (lambda: Model(Raises(), SHAPE), r"network Raises, .* \(RuntimeError, .*test_library_calls.py:\d+\): too bad"),
    (lambda: Model(NoOutputs(), SHAPE), "network NoOutputs: it returns no features"),
    (lambda: Model(nn.MLP("4"), SHAPE), "MLP: num_classes '4': expected int"),
    (lambda: Model(nn.MLP(4, hidden=3), SHAPE), "MLP: hidden 3: expected tuple"),
    (lambda: Model(nn.MLP(4, hidden=("a",)), SHAPE), r"MLP: hidden \('a',\): 'a': expected int"),
    (lambda: Model(nn.SmallCNN(4, channels=3), SHAPE), "SmallCNN: channels 3: expected tuple"),
]


def adam(**options):
    return LocalTraining(momentum=0.0, optimizer=constructor(optax.adam, **options))


ALGORITHMS = [
    (lambda: FedAvg(3), "FedAvg: training 3: expected LocalTraining, got int"),
    (lambda: FedAvg(LocalTraining), "FedAvg: training .*: expected LocalTraining, got type"),
    (lambda: FedAvg(methods=None), "FedAvg: methods None: expected Mapping"),
    (lambda: FedAvg(LocalTraining(), FedDecorr()), "FedAvg: methods FedDecorr.*: expected Mapping, got FedDecorr"),
    (lambda: FedAvg(methods=[FedDecorr()]), "FedAvg: methods .*: expected Mapping, got list"),
    (lambda: FedAvg(methods={"a": FedDecorr}), "FedAvg: methods a: .*: expected Method, got type"),
    (lambda: FedAvg(methods={3: FedDecorr()}), "FedAvg: methods 3: expected str"),
    (lambda: FedAvg(server_optimizer=optax.sgd(1.0)), "FedAvg: server_optimizer .*: expected Partial"),
    (lambda: FedAvg(server_optimizer=constructor(3)), "constructor: function 3: expected a function"),
    (lambda: FedAvg(server_optimizer=constructor(optax.adam, learning_rate="a")), "server_optimizer cannot be made"),
    (lambda: FedAvg(server_optimizer=constructor(optax.sgd, learning_rate=jnp.ones(3))), "server_optimizer .*shape"),
    (lambda: FedAvg(LocalTraining(learning_rate=jnp.ones(3))), "learning_rate .*expected float, got an array of shape"),
    (lambda: FedAvg(LocalTraining(learning_rate=KEY)), "learning_rate .*expected float, got an array of key"),
    (lambda: FedAvg(LocalTraining(learning_rate=jnp.complex64(1))), "LocalTraining: learning_rate"),
    (lambda: FedAvg(LocalTraining(batch_size=jnp.ones(2, int))), "batch_size .*expected int, got an array of shape"),
    (lambda: FedAvg(LocalTraining(phases=(3,))), r"LocalTraining: phases \(3,\): 3: expected Phase"),
    (lambda: FedAvg(adam(learning_rate=0.1)), "optimizer: learning_rate 0.1 is given by training; leave it out"),
    (lambda: FedAvg(adam(b1=jnp.ones(3))), "LocalTraining: optimizer"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda: 1.0)), r"training.task_loss \(TypeError\): .*positional argument"),
    (
        lambda: FedAvg(LocalTraining(task_loss=lambda view: None)),
        "training.task_loss: it returned NoneType, expected one",
    ),
    (
        lambda: FedAvg(LocalTraining(task_loss=lambda view: view.outputs.logits)),
        r"it returned float32\[\d+, 4\], expected",
    ),
    (lambda: FedAvg(LocalTraining(task_loss=lambda view: jnp.int32(1))), r"it returned int32\[\], expected one float"),
    (lambda: FedAvg(LocalTraining(task_loss=lambda view: 1 / 0)), r"task_loss \(ZeroDivisionError, .*:\d+\): division"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda: 1)), r"augmentation \(TypeError"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda image, key: None)), "augmentation: it returned NoneType"),
    (lambda: FedAvg(LocalTraining(augmentation=lambda image, key: image[0])), "model: its inputs have shape"),
]

OTHERS = [
    (lambda: engine.Vectorized(3), "Vectorized: on 3: expected tuple, got int"),
    (lambda: engine.Chunked(2, on=("cpu",)), r"Chunked: on \('cpu',\): 'cpu': expected Device, got str"),
    (lambda: engine.Sharded("2", engine.Vectorized()), "Sharded: num_devices '2': expected int"),
    (lambda: engine.Sharded(2, 3), "Sharded: inner 3: expected ClientMap"),
    (lambda: partition.iid(None, 3), "iid: labels None: expected an array, got NoneType"),
    (lambda: partition.iid("abc", 3), "iid: labels 'abc': expected an array, got str"),
    (lambda: partition.dirichlet(KEY, 3, 0.1), "dirichlet: labels an array of key.*, expected"),
    (lambda: partition.dirichlet(np.ones(9), 3, 0.1), "dirichlet: labels an array of float64, expected int"),
    (lambda: partition.dirichlet(np.ones((9, 9), int), 3, 0.1), r"labels an array of shape \(9, 9\), expected \["),
    (lambda: partition.dirichlet(np.arange(9), KEY, 0.1), "num_clients .*: expected int, got an array of key"),
    (lambda: partition.dirichlet(np.arange(9), 3, np.ones(9)), "alpha .*: expected float, got an array of shape"),
    (lambda: partition.pathological(np.arange(9), 3, np.ones(9, int)), "classes_per_client .*an array of shape"),
    (lambda: Model(NET, SHAPE).init(3), "Model.init: key 3: expected Array, got int"),
    (lambda: Model(NET, SHAPE).mask(3), "network: part 3: expected str, got int"),
    (lambda: evaluate(None, PARAMS, None), "evaluate: model None: expected Model"),
    (lambda: evaluate(Model(NET, SHAPE), None, None), "evaluate: variables None: expected Variables"),
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
        return simulate(**arguments)

    return simulate_with


def check(function, message):
    with pytest.raises(UserError, match=message) as error:
        function()
    assert "\n" not in error.value.args[0]


@pytest.mark.parametrize(("given", "message"), SIMULATE)
def test_arguments_of_simulate(call, given, message):
    check(lambda: call(**given), message)


@pytest.mark.parametrize(("make", "message"), MODELS)
def test_models(call, make, message):
    check(lambda: call(model=make()), message)


@pytest.mark.parametrize(("make", "message"), ALGORITHMS)
def test_algorithms(call, make, message):
    check(lambda: call(algorithm=make()), message)


@pytest.mark.parametrize(("make", "message"), OTHERS)
def test_other_calls(make, message):
    check(make, message)


OF_ALL = [
    (method, field.name)
    for method in discovery.classes(methods, Method).values()
    for field in dataclasses.fields(method)
]


@pytest.mark.parametrize(("method", "field"), OF_ALL)
def test_options_of_methods(method, field):
    """Arrays, keys, text and objects in place of a number, a name or a choice."""
    for value in (jnp.ones(3), np.ones(2), [1, 2], KEY, object(), {}):
        check(
            lambda value=value: FedAvg(methods={"a": method(**{field: value})}).check(), f"{method.__name__}: {field}"
        )


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Participation)])
def test_options_of_participation(field):
    for value in ([1, 2], KEY, object(), {}, -1.0, NAN):
        check(lambda value=value: Participation(**{field: value}).check(5, "size"), f"Participation: {field}")


@pytest.mark.parametrize("name", inspect.signature(Federation.from_arrays).parameters)
def test_arguments_of_a_federation(name):
    """What one would not mistake for the right thing."""
    images, labels = np.zeros((4, 2, 2, 1), np.uint8), np.arange(4) % 2
    images[0] = 1
    usual = dict(images=images, labels=labels, partition=[[0, 1], [2, 3]], test_images=images, test_labels=labels)
    for value in (KEY, object(), {}, 1j, lambda: 3, "a"):
        check(lambda value=value: Federation.from_arrays(**usual | {name: value}), "")
