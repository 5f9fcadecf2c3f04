"""The interface of methods: errors name the method, each method has separate randomness, and the order matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TRAINING, assert_same_bits, cases, check, one_line
from conftest import run_at_once as run
from flax import struct

from fedjax_collapse import FedAvg, FedDC, FedDyn, FedNova, Method, Phase, Regularizer, Scaffold, Term
from fedjax_collapse.methods import ClipUpdate, NoisyUpdate
from fedjax_collapse.methods.drift.fedcm import FedCM

KEPT = TRAINING.replace(momentum_reset=False)


class Draw(Regularizer):
    """Logs a random number of its key, which is no function of anything else."""

    strength: float = 1e-12

    def penalty(self, view):
        return {"number": Term(self.strength, jax.random.uniform(view.key))}


class Task(Method):
    def task(self, view):
        return jnp.sum(view.outputs.logits**2)


class Earlier(Method):
    def first_report(self, view):
        return ()


WRONG = {  # hooks that return another tree than they receive
    "upload": lambda self, update, view: (jax.tree.map(lambda leaf: leaf[..., :1], update), view.memory),
    "correct": lambda self, gradient, params, view: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradient),
    "gradient": lambda self, gradient_of, params, view: {"Dense_0": gradient_of(params)["Dense_0"]},
    "aggregate": lambda self, update, shared, report: (),
    "finish": lambda self, view: ({"grown": jnp.zeros(())}, ()),
    "combine": lambda self, shared, report: jnp.zeros(3),
}


@pytest.mark.slow
def test_every_method_has_a_key_of_its_own(federation, network):
    """Of equal methods under two names, and of dropout, whose numbers do not change for a method's being there."""
    result = run(federation, network, FedAvg(TRAINING, {"one": Draw(), "other": Draw()}))
    one, other = (result.clients[f"{name}/number"][0] for name in ("one", "other"))
    assert len(set(one)) == 5 and not np.any(one == other)
    again = run(federation, network, FedAvg(TRAINING, {"other": Draw(), "more": Draw(), "one": Draw()}))
    assert_same_bits(again.clients["one/number"][0], one)


@pytest.mark.slow
@pytest.mark.parametrize("hook", WRONG)
def test_what_a_hook_returns_is_checked(federation, network, hook):
    kind = struct.dataclass(type("Wrong", (Method,), {hook: WRONG[hook]}))
    with one_line(f"method mine: its {hook} returned another tree than it received"):
        run(federation, network, FedAvg(TRAINING, {"mine": kind()}))


@cases(
    ({"a": Earlier()}, TRAINING, "method a: first_report is of an earlier version, expected measure, with when_"),
    ({"a": Task()}, TRAINING.replace(task_loss=lambda view: 0.0), "method a: training.task_loss is given too"),
    ({}, TRAINING.replace(steps=3, phases=(Phase("head", 1),)), "steps and phases are given"),
    ({}, TRAINING.replace(phases=(Phase("heads", 1),)), "part heads: the network has no such layer"),
    ({}, TRAINING.replace(optimizer=jax.tree_util.Partial(max)), "momentum 0.5 is of SGD"),
    ({}, KEPT.replace(momentum=0.0), "momentum_reset=False, but momentum is 0; set momentum or"),
    ({}, KEPT.replace(phases=(Phase("all", 1),)), "momentum_reset=False and phases are given; each"),
    ({"a": FedNova()}, KEPT, "FedNova: its effective number of steps assumes that momentum starts at zero; set"),
    ({"a": Scaffold("fednova")}, KEPT, "Scaffold: its effective number of steps assumes"),
    ({"a": FedCM()}, KEPT, "FedCM: its effective number of steps assumes"),
)
def test_invalid_values_are_rejected(methods, training, message, network):
    check(message, FedAvg(training, methods).check, network)
    with one_line("part tail: the network has no such layer, at the top it has Dense_0, Dense_1"):
        FedAvg(TRAINING, private="tail").check(network)


@pytest.mark.slow
def test_uploads_go_through_methods_in_their_order(float64, federation, network):
    """Clipping before adding noise bounds only the update; after it, the sum."""
    start = network.init(jax.random.key(3))
    clip, noise = {"clip_update": ClipUpdate(0.01)}, {"noisy_update": NoisyUpdate(1.0)}
    moved = {}
    for name, methods in {"bounded": {**noise, **clip}, "noisy": {**clip, **noise}}.items():
        result = run(federation, network, FedAvg(TRAINING, methods), variables=start)
        way = jax.tree.map(lambda new, old: np.sum((new - old) ** 2), result.variables.params, start.params)
        moved[name] = np.sqrt(sum(jax.tree.leaves(way)))
    assert moved["bounded"] <= 0.01 < 1 < moved["noisy"]


@pytest.mark.parametrize("method", [FedDyn(0.1), FedDC(0.1)])
def test_a_method_says_how_clients_are_weighted(method):
    assert FedAvg(TRAINING).weights_by == "size"
    assert FedAvg(TRAINING, {"mine": method}).weights_by == "equal"
    assert FedAvg(TRAINING, {"mine": method}, weighting="size").weights_by == "size"


@cases(
    (dict(epochs=0.5), [2, 1, 3, 2, 2]),
    (dict(epochs=1.5), [5, 2, 8, 5, 5]),
    (dict(epochs=2.0), [6, 2, 10, 6, 6]),
    (dict(steps=4), [4] * 5),
    (dict(drop_last=True), [2, 0, 5, 2, 2]),
    (dict(drop_last=True, steps=4), [4, 0, 4, 4, 4]),
)
def test_numbers_of_local_steps(changes, expected, federation):
    """Fractions of an epoch are rounded up to whole steps; a number of steps is the same for all clients."""
    [(_, steps)] = TRAINING.replace(**changes).phase_steps(federation.ownership.sizes)
    assert jnp.broadcast_to(steps, 5).tolist() == expected
