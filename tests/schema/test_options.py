"""What annotations say of values, and the arguments of optimizers that are no numbers."""

import dataclasses
import functools
import inspect
from typing import Annotated, Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_same_bits, cases, check
from flax import linen
from jax.tree_util import Partial

import fedjax_collapse as fc
from fedjax_collapse import FedAvg, LocalTraining, Method, Phase, UserError, partition, sources
from fedjax_collapse.config.keys import METHODS, NETWORKS
from fedjax_collapse.schema import options
from fedjax_collapse.schema.names import functions
from fedjax_collapse.schema.options import Count, Interval, Positive, check_fields, check_value, constructor, problem
from fedjax_collapse.schema.values import check_arguments

NAN, INF = float("nan"), float("inf")


class Pair(NamedTuple):
    first: Count
    second: str = "x"


@cases(
    ("a", float, "'a': expected float, got str"),
    (True, float, "True: expected float, got bool"),
    (2.0, int, "2: expected int, got float"),
    (1, bool, "1: expected bool, got int"),
    (NAN, float, "nan is not finite"),
    (-INF, float, "-inf is not finite"),
    (1e39, float, "1e+39 does not fit into 32 bits, expected at most 3.40282e+38"),
    (2**31, int, "2147483648 does not fit into 32 bits, expected at most 2147483647"),
    (np.int64(0), Count, "0 is too small, expected >= 1"),
    (jnp.float32(NAN), Positive, "nan is not finite"),
    (np.zeros(3), Positive, "array([0., 0., 0.]): expected float, got an array of shape (3,)"),
    (1.0, options.Decay, "1 is outside [0, 1)"),
    (0, options.Share, "0 is outside (0, 1]"),
    (2**32, options.Seed, "4294967296 is outside [0, 4294967295]"),
    (-1.0, Annotated[float, Interval(0, advice="take more")], "-1 is negative, expected >= 0; take more"),
    ("b", Annotated[str, ("a", "c")], "'b': expected one of a, c"),
    (((1, 0),), tuple[tuple[Count, Count], ...], "((1, 0),): (1, 0): 0 is too small, expected >= 1"),
    ((1,), tuple[int, int], "(1,): expected 2 values, got 1"),
    (3, type[linen.Module], "3: expected a class derived from Module"),
    ({"b": "\n" * 99}, str, None),
)
def test_what_is_wrong(value, hint, expected):
    found = problem(value, hint)
    assert found == expected if expected else found and len(found) < 120 and "\n" not in found


@cases(
    (1, float),
    (jnp.float32(0.5), Positive),
    (np.zeros(3), float | jax.Array),
    (None, Count | None),
    ([1, 2], tuple[int, ...]),
    (object(), Any),
    (len, "a name that is not there"),
    (Pair(1), Pair),
    (constructor(optax.sgd, momentum=0.9, nesterov=True), jax.tree_util.Partial),
)
def test_what_is_right(value, hint):
    assert problem(value, hint) == ""


def test_what_is_traced_is_not_looked_at():
    jax.jit(lambda value: [check_value("", value, Positive), check_value("", value, float | None)])(-1.0)


def test_records_functions_and_their_choices():
    class Own(Method):
        kind: str = options.option("a", choices=("a", "b"))
        share: "options.Share" = 0.5  # text, as of modules that postpone their annotations

    @options.checked
    def function(values: Any, count: Count = 1) -> int:
        return count

    Own().check()
    assert function(None, 3) == 3 and function(values=()) == 1
    for call, message in (
        (Own("c").check, "Own: kind 'c': expected one of a, b"),
        (lambda: check_fields(Pair(0)), "Pair: first 0 is too small"),
        (lambda: check_fields(Pair(1, None)), "Pair: second None: expected str, got NoneType"),
        (lambda: function(None, 0), "function: count 0 is too small"),
    ):
        check(message, call)


def test_flags_of_optimizers_are_part_of_the_program():
    """Nesterov's momentum, as by a constructor that has it; equal ones share a program."""

    @jax.jit
    def updates(make):
        optimizer, gradient = make(learning_rate=0.1), jnp.arange(3.0)
        first, state = optimizer.update(gradient, optimizer.init(gradient))
        return first, optimizer.update(-gradient, state)[0]

    nesterov = functools.partial(constructor, optax.sgd, nesterov=True)
    expected = Partial(lambda learning_rate, momentum: optax.sgd(learning_rate, momentum, nesterov=True), momentum=0.9)
    assert_same_bits(updates(nesterov(momentum=0.9)), updates(expected))
    plain = constructor(optax.sgd, momentum=0.9, nesterov=False)
    first, second, other = map(jax.tree.structure, (nesterov(momentum=0.9), nesterov(momentum=0.5), plain))
    assert first == second != other and hash(first) == hash(second)
    with pytest.raises(UserError, match="optimizer True: expected float, got bool; pass what is not a number with"):
        LocalTraining(optimizer=Partial(optax.sgd, nesterov=True)).check()


@cases(
    (Partial(optax.adam, learning_rate=0.1), "LocalTraining: optimizer: learning_rate 0.1 is given by training"),
    (Partial(optax.adam, 0.1), "optimizer cannot be made with these options .TypeError.: .*multiple values"),
    (Partial(lambda learning_rate: 3), "optimizer cannot be made with these options .AttributeError"),
    (constructor(optax.sgd, nesterov=True), "optimizer: nesterov True has no effect with the other options"),
    (optax.adam(0.1), "optimizer GradientTransformation.*: expected Partial, got GradientTransformation"),
    ("adam", "optimizer 'adam': expected Partial, got str"),
)
def test_optimizers_that_are_none(optimizer, message):
    check(message, LocalTraining(optimizer=optimizer).check)
    if not isinstance(optimizer, Partial):
        check("FedAvg: server_optimizer", FedAvg(server_optimizer=optimizer).check)


def test_muon_trains_matrices(model, network):
    """It would train other kernels with Adam: that is an error, unless they are frozen or it knows their axes."""
    muon = constructor(optax.contrib.muon)
    for what, algorithm in (
        ("LocalTraining: optimizer", FedAvg(LocalTraining(optimizer=muon))),
        ("FedAvg: server_optimizer", FedAvg(server_optimizer=constructor(optax.contrib.muon, learning_rate=1.0))),
    ):
        algorithm.check(network)
        check(f"{what} muon: .* would train Conv_0/kernel, of 4 axes, with Adam; expect", algorithm.check, model)
        algorithm.replace(training=algorithm.training.replace(freeze="body")).check(model)

    def of_kernels(params):
        axes = optax.contrib.MuonDimensionNumbers((0, 1, 2), 3)
        return jax.tree.map(lambda leaf: axes if leaf.ndim == 4 else None, params)

    told = constructor(optax.contrib.muon, muon_weight_dimension_numbers=of_kernels)
    FedAvg(LocalTraining(optimizer=told)).check(model)


RECORDS = {"local_training": LocalTraining, "phase": Phase, "participation": fc.Participation, **METHODS}
FUNCTIONS = {**functions(partition), **functions(sources)}
UNFIT = (object(), jax.random.key(0), jnp.ones(3))  # for any field, but those that may be arrays
WRONG = (NAN, INF, -INF, "abc", (), ("a",), {}, 2**40, None, -1, *UNFIT)


def check_record(name, record):
    if name == "phase":
        check_fields(record)  # which ``LocalTraining`` does
    else:
        record.check(*{"participation": (3, "size")}.get(name, ()))


@pytest.mark.parametrize("name", RECORDS)
def test_no_field_takes_what_it_is_not(name):
    """By discovery: what is no finite number is refused by every number, and no field ends in another error."""
    record = RECORDS[name]()
    for field in dataclasses.fields(record):
        for value in WRONG:
            wrong = dataclasses.replace(record, **{field.name: value})
            try:
                check_record(name, wrong)
            except UserError as error:
                assert field.name in str(error) and "\n" not in str(error)
            else:
                assert not any(value is unfit for unfit in UNFIT) or "Array" in str(field.type), field.name
                is_none = value is None and type(None) in get_args(field.type)
                assert is_none or not isinstance(getattr(record, field.name), (int, float)) or value == -1


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_takes_what_is_no_option(name):
    made = NETWORKS[name]
    for option_, hint in options.hints(made).items():
        if option_ in ("num_classes", "parent", "name"):  # given, or Linen's own
            continue
        for value in (NAN, INF, {}, ("a",), 2**40, *(["abc"] if problem("abc", hint) else [])):
            check(rf"network.{option_} ", check_arguments, "network", made, {option_: value}, dict(num_classes=3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_source_or_partition_takes_what_it_is_not(name):
    function = FUNCTIONS[name]
    needed = {key: p for key, p in inspect.signature(function).parameters.items() if p.default is p.empty}
    arrays = ("labels", "domains", "owners", "coarse_labels")
    given = {key: np.zeros(4, int) if key in arrays else "/none" for key in needed}
    given |= {key: "cifar10" for key in needed if key == "name"}
    given |= {key: 2 for key in needed if key in ("num_clients", "alpha", "classes_per_client")}
    for key, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, (bool, int, float, tuple)) or key in ("alpha", "classes_per_client"):
            for value in (NAN, INF, "abc", {}, 2**40, None):
                check(f"{name}: {key} ", function, **{**given, key: value})
