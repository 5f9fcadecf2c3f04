"""Every option of every method, network and sampler, and of local training, does something; found by annotations.

Changing it changes a program of a run, or a number that a program takes. Or it is refused, as one that belongs to
another option, with which it does something. What is neither, in one of its values, is in ``NO_EFFECT`` with a reason.
"""

import collections.abc
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from composed_algorithms import first_accepted
from conftest import long_where
from flax import linen
from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr
from tiny_networks import LARGE, TINY, batch_of, tiny_model

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, Participation, Phase, UserError, engine, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core.target import Target
from fedjax_collapse.engine import rounds as compiled
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.heads import Linear
from fedjax_collapse.nn.network import HEADS, Network
from fedjax_collapse.optim import schedules
from fedjax_collapse.run import own_tests
from fedjax_collapse.schema.options import hints, problem, with_options
from fedjax_collapse.training import server

pytestmark = pytest.mark.slow

ANY, REFUSED = "any", "refused"
NO_EFFECT = {  # record, option and value, or that it is there to refuse: why nothing changes
    (ANY, "head", repr(Linear)): "it is what 'linear' stands for",
    (ANY, "dtype", "'float32'"): "images are float32, in which layers compute by default",
    (ANY, "lowering", ANY): "auto is the first choice of these for a layer",
    ("MOON", "needs_projector", REFUSED): "a network without a projector is refused",
    ("FedAvg", "weighting", "'size'"): "what it is by default, unless a method says otherwise",
}
TRAINING = LocalTraining(epochs=2, batch_size=4, learning_rate=0.05)
PATH = "algorithm.training"  # of its numbers in a program
NUMBERS = (0.5, 2, 3, 1, 0)
GIVEN = ("num_classes", "parent", "name", "training", "methods")  # of networks by who makes them; records of their own
OTHER_NUMBERS = ("resnet20", "resnet32")  # of resnet18, whose options they have
SHARED = {field.name for field in dataclasses.fields(Network)}  # by all networks, in one place


def task_loss(view):
    return jnp.sum(jnp.where(view.batch.mask, view.outputs.logits[:, 0], 0.0))


def mirrored(image, key):
    return image[:, ::-1]


OF_TYPES = {  # values of annotations that do not say which there are
    jax.tree_util.Partial: (jax.tree_util.Partial(optax.adam, 0.1),),
    jax.Array: (np.array([0.25, 0.5, 0.5, 1.0], np.float32),),
    Phase: (Phase("head", 2), Phase("all", 1)),
    Target: (Target("tpu"),),
    engine.Uniform: (engine.BySize(), engine.Available()),
    engine.Clock: (engine.Clock(1.0, deadline=2.0),),
    bool: (False, True),
    int: NUMBERS,
    float: tuple(map(float, NUMBERS)),
}
OF_NAMES = {
    "task_loss": [task_loss],
    "augmentation": [mirrored],
    "optimizer": [jax.tree_util.Partial(optax.adam)],
    "ranks": [(1, 2)],
    "layers": [("Dense_0",)],
    "schedule": [jax.tree_util.Partial(schedules.decay)],
}


class Programs(NamedTuple):
    """What a run compiles, as text, and the names of the numbers that it takes."""

    text: str
    used: set[str]


@functools.cache
def federation():
    labels = np.arange(24) % 4
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
    parts = [range(5), range(5, 8), range(8, 16), range(16, 24)]
    return Federation.from_arrays(images, labels, parts, images[:6], labels[:6])


def programs(
    algorithm: FedAvg,
    rule: Participation = Participation(0.5),  # noqa: B008
    batch_norm: bool = True,
    adapters: LoRA | None = None,
) -> Programs:
    """Of the rounds, of what comes before the first and after the last, of own models' tests, and of virtual time.

    ``batch_norm``: of a network with BatchNorm where it can be one, else of one without; perhaps with ``adapters``.
    """
    data = federation()
    algorithm.check()
    rule.check(data.num_clients, algorithm.weights_by)
    modules = nn.SmallCNN(4, channels=(16,)), nn.MLP(4, hidden=(16,))
    networks = [Model(module, data.input_shape) for module in (modules if batch_norm else modules[::-1])]
    network = first_accepted(algorithm, networks) or networks[0]
    network = network if adapters is None else dataclasses.replace(network, adapters=adapters)
    algorithm.check(network)
    algorithm, rule = jax.tree.map(jnp.asarray, (algorithm, rule))
    layout = engine.Layout(engine.Chunked(1), rule.cohort_size(data.num_clients))
    rounds = engine.RoundSpec(network, layout, rule=(type(rule), type(rule.sampler)))  # as in a run
    given = engine.Assignment(data.ownership, rule)

    def start(algorithm, key):
        return server.init(algorithm, network, network.init(key), data.num_clients)

    def score(algorithm, state, clients):
        return server.evaluated(algorithm, network, state, clients)

    def time(assignment, key):
        clock = assignment.participation.clock
        return () if clock is None else clock.seconds(key, jnp.ones(4, int))

    key = jax.eval_shape(lambda: jax.random.key(0))
    started = jax.jit(start).trace(algorithm, key)
    state, client = started.out_info
    clients = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((4, *leaf.shape), leaf.dtype), client)
    whole = engine.State(state, clients, key, jax.ShapeDtypeStruct((), jnp.int32))
    arguments = rounds, algorithm, whole, given, data.train
    traced = [
        compiled._run_rounds_compiled.trace(*arguments, rounds.layout.max_rounds),
        started,
        jax.jit(score).trace(algorithm, state, clients),
        jax.jit(time).trace(given, key),
        *([compiled._with_first_reports.trace(*arguments)] if algorithm.having("measure", "start") else []),
    ]
    if algorithm.is_personal:
        owned, models = (data.train, data.ownership), (algorithm, state, clients)
        given = network, (own_tests.RECEIVED,), False, *models, owned, key, whole.round, None, owned, None
        traced.append(own_tests._score_clients.trace(*given))
    return what_they_do(*(each.jaxpr for each in traced))


def of_participation(rule: Participation) -> Programs:
    return programs(FedAvg(TRAINING, weighting="equal"), rule)


def what_they_do(*traced: ClosedJaxpr) -> Programs:
    """The programs, without what none of their results depends on."""
    text, used = [], set()
    for each in traced:
        needed, is_used = dce_jaxpr(each.jaxpr, [True] * len(each.jaxpr.outvars))
        arrays = [*each.consts, *_arrays(needed)]
        text += [re.sub("0x[0-9a-f]+", "", str(needed)), *(np.asarray(value).tobytes().hex() for value in arrays)]
        used |= set(itertools.compress(each.jaxpr.debug_info.arg_names, is_used))
    return Programs("\n".join(text), used)


def _arrays(jaxpr):
    """The arrays in a program, which JAX 0.12 writes where they are used, and shows without their numbers."""
    for equation in jaxpr.eqns:
        yield from (given.val for given in equation.invars if isinstance(given, Literal) and np.ndim(given.val))
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: isinstance(each, ClosedJaxpr))
        for each in inner:
            if isinstance(each, ClosedJaxpr):
                yield from each.consts
                yield from _arrays(each.jaxpr)


def of_network(name: str, module: linen.Module, adapters: LoRA | None = None) -> Programs:
    """Its initialisation and its training; it takes no number."""
    size = TINY[name].size
    model, batch = Model(module, (size, size, 3), adapters=adapters), batch_of((size, size, 3))
    key = jax.eval_shape(lambda: jax.random.key(0))
    started, variables = jax.make_jaxpr(model.init, return_shape=True)(key)
    train = functools.partial(model.apply, train=True, levels=True)
    return what_they_do(started, jax.make_jaxpr(train)(variables, batch, key=key))


def of_head(module: linen.Module) -> Programs:
    """Those of a network that has it."""
    options = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    head = with_options(type(module), **{name: value for name, value in options.items() if name not in GIVEN})
    return of_network("mlp", nn.MLP(4, hidden=(16,), head=head))


def of_adapters(adapters: LoRA) -> Programs:
    """Those of a network that has them."""
    return of_network("mlp", tiny_model("mlp").module, adapters)


def of_ranks(adapters: LoRA) -> Programs:
    """Those of clients with different ranks."""
    algorithm = FedAvg(TRAINING, {"flexlora": METHODS["flexlora"](ranks=(1, 2))})
    return programs(algorithm, batch_norm=False, adapters=adapters)


class Options(NamedTuple):
    """The options of a record: ``make`` makes a run's programs of it, ``path`` is where numbers of it are in them;
    ``otherwise`` makes them where those do not differ; options that are ``tried`` elsewhere are left out."""

    record: Any
    make: Callable[[Any], Programs]
    path: str = ""
    otherwise: Callable[[Any], Programs] | None = None
    tried: Collection[str] = ()

    def others(self, name: str) -> list[Any]:
        """Values that the record does not have: of choices all others, else numbers one after the other."""
        now, hint = getattr(self.record, name), hints(type(self.record))[name]
        found = OF_NAMES.get(name) or [*_near(now), *self._values(hint, name)]
        return [value for value in found if not problem(value, hint) and not _is_same(value, now)]

    def outcome(self, name: str, value: Any) -> str:
        """What changing an option does: effect, refused, or none."""
        for make in filter(None, (self.make, self.otherwise)):
            try:
                after = make(_replaced(self.record, name, value))
            except UserError as error:
                assert "\n" not in str(error)
                return "refused"
            if f"{self.path}.{name}" in after.used or after.text != make(self.record).text:
                return "effect"
        return "none"

    def outcomes(self, name: str) -> dict[str, str]:
        """By value; of numbers that of the first that is not refused."""
        if f"{self.path}.{name}" in self.make(self.record).used:  # for another number the programs are the same
            return dict.fromkeys(map(repr, self.others(name)[:1]), "effect")
        found = {}
        for value in self.others(name):
            found[repr(value)] = self.outcome(name, value)
            if not isinstance(value, (str, bool, type)) and found[repr(value)] != "refused":
                break
        return found

    def beside(self, name: str) -> Iterator["Options"]:
        """The same with each other option changed, as far as that is allowed."""
        for other in self.names():
            for value in self.others(other)[:4] if other != name else ():
                if self.outcome(other, value) != "refused":
                    yield self._replace(record=_replaced(self.record, other, value))

    def names(self) -> list[str]:
        return [field.name for field in dataclasses.fields(self.record) if field.name not in (*GIVEN, *self.tried)]

    def _values(self, hint, name):
        origin, arguments = get_origin(hint), get_args(hint)
        if hasattr(hint, "__metadata__"):
            kind, limit = arguments
            return list(limit) if isinstance(limit, tuple) else self._values(kind, name)
        if origin is tuple:
            return [tuple(self._values(arguments[0], name)[:2])]
        if origin is type:
            return list(HEADS.values()) if arguments[0] is linen.Module else []
        if origin not in (None, collections.abc.Callable) and arguments:
            return [value for kind in arguments for value in self._values(kind, name)]
        return self._words(name) if hint is str else OF_TYPES.get(hint, ())

    def _words(self, name):
        """Those that a wrong one is answered with."""
        try:
            self.make(_replaced(self.record, name, "?"))
        except UserError as error:
            words = re.search("expected (?:one of )?([^;]*)", str(error))[1]
            return [word.strip("' ") for word in re.split(",| or ", words) if " " not in word.strip()]
        raise AssertionError(f"{name}: any text is accepted")


def of_named_network(name: str) -> Options:
    tried = () if name == "small_cnn" else SHARED
    return Options(tiny_model(name).module, functools.partial(of_network, name), tried=tried)


def of_method(name: str) -> Options:
    """Tried with a small dense network, and what does nothing there, as a mode of BatchNorm, with another one."""

    def make(method, batch_norm=False):
        return programs(FedAvg(TRAINING, {name: method}), batch_norm=batch_norm)

    method = METHODS[name](**(dict(width=4) if name == "weak_sigreg" else {}))  # of fewer features it is of no use
    return Options(method, make, f"algorithm.methods['{name}']", functools.partial(make, batch_norm=True))


def _replaced(record, name, value):
    replace = linen.Module.clone if isinstance(record, linen.Module) else dataclasses.replace
    return replace(record, **{name: value})


def _near(value) -> Iterator[Any]:
    """Other numbers of its type, also in a tuple."""
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from ((*value[:place], other, *value[place + 1 :]) for other in _near(item))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (value / 2, value * 2, value + 1) if isinstance(value, float) else (value // 2, value * 2, value + 6)


def _is_same(one, other):
    return not isinstance(one, np.ndarray) and isinstance(one, bool) == isinstance(other, bool) and one == other


OPTIONS = {
    **{f"method {name}": of_method(name) for name in METHODS},
    **{f"network {name}": of_named_network(name) for name in TINY if name not in OTHER_NUMBERS},
    **{f"head {name}": Options(kind(4, name="head"), of_head) for name, kind in HEADS.items()},
    "adapters": Options(LoRA(2, layers=("all",)), of_adapters, otherwise=of_ranks),
    "training": Options(TRAINING, lambda training: programs(FedAvg(training)), PATH),
    "phase": Options(Phase(), lambda own: programs(FedAvg(TRAINING.replace(phases=(own,)))), f"{PATH}.phases[0]"),
    "fedavg": Options(FedAvg(TRAINING), programs, "algorithm"),
    "participation": Options(Participation(0.5), of_participation, "assignment.participation"),
    "available": Options(
        engine.Available(), lambda own: of_participation(Participation(0.5, own)), "assignment.participation.sampler"
    ),
    "clock": Options(
        engine.Clock(1.0), lambda own: of_participation(Participation(0.5, clock=own)), "assignment.participation.clock"
    ),
}


def once_for_each(make: Callable[[Any], Programs]) -> Callable[[Any], Programs]:
    """The function, which makes the programs of equal records once."""
    found = {}

    def made(record):
        if repr(record) not in found:
            found[repr(record)] = make(record)
        return found[repr(record)]

    return made


@pytest.mark.parametrize("name", long_where([f"network {name}" for name in LARGE], OPTIONS))
def test_every_option_does_something(name):
    """Alone or beside another one; and no value of one is ignored in silence."""
    given = OPTIONS[name]
    otherwise = given.otherwise and once_for_each(given.otherwise)
    options = given._replace(make=once_for_each(given.make), otherwise=otherwise)
    kind = type(given.record).__name__
    for option in options.names():
        found = options.outcomes(option)
        expected = {value for own, known, value in NO_EFFECT if own in (kind, ANY) and known == option}
        ignored = {value for value, outcome in found.items() if outcome == "none"}
        assert ignored <= expected or ANY in expected, f"{option}={ignored}: changes nothing; refuse it, or say why"
        is_alive = "effect" in found.values() or (kind, option, "refused") in NO_EFFECT
        is_alive = is_alive or any("effect" in of.outcomes(option).values() for of in options.beside(option))
        assert is_alive, option
