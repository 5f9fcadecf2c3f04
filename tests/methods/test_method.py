"""The interface of methods: errors name the method, each method has separate randomness, and the order matters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import assert_close, assert_same_bits
from conftest import run_at_once as run
from flax import struct

from fedjax_collapse import (
    FedAvg,
    FedDC,
    FedDyn,
    FedMR,
    FedNova,
    LocalTraining,
    Method,
    Model,
    Phase,
    Regularizer,
    Scaffold,
    Term,
    UserError,
    nn,
)
from fedjax_collapse.methods import ClipUpdate, NoisyUpdate, TopK
from fedjax_collapse.methods.fedcm import FedCM

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)
KEPT = TRAINING.replace(momentum_reset=False)


@pytest.fixture(scope="module")
def network(federation):
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


@struct.dataclass
class Draw(Regularizer):
    """Logs a random number of its key, which is no function of anything else."""

    strength: float = 1e-12

    def penalty(self, view):
        return {"number": Term(self.strength, jax.random.uniform(view.key))}


@struct.dataclass
class Task(Method):
    def task(self, view):
        return jnp.sum(view.outputs.logits**2)


@struct.dataclass
class Gradient(Method):
    def gradient(self, gradient_of, params, view):
        return gradient_of(params)


@struct.dataclass
class Wrong(Method):
    """Its hook returns another tree than it received."""

    hook: str = struct.field(pytree_node=False, default="upload")

    def has(self, hook):
        return hook == self.hook

    def upload(self, update, view):
        return jax.tree.map(lambda leaf: leaf[..., :1], update), view.memory

    def correct(self, gradient, params, view):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), gradient)

    def gradient(self, gradient_of, params, view):
        return {"Dense_0": gradient_of(params)["Dense_0"]}

    def aggregate(self, update, shared, report):
        return ()

    def finish(self, view):
        return ({"grown": jnp.zeros(())} if self.hook == "finish" else view.memory), ()

    def combine(self, shared, report):
        return jnp.zeros(3) if self.hook == "combine" else shared


@pytest.mark.slow
def test_every_method_has_a_key_of_its_own(federation):
    """Of equal methods under two names, and of dropout, whose numbers do not change for a method's being there."""
    network = Model(nn.MLP(4, hidden=(6,)), federation.input_shape)
    result = run(federation, network, FedAvg(TRAINING, {"one": Draw(), "other": Draw()}))
    one, other = (result.clients[f"{name}/number"][0] for name in ("one", "other"))
    assert len(set(one)) == 5 and not np.any(one == other)
    again = run(federation, network, FedAvg(TRAINING, {"other": Draw(), "more": Draw(), "one": Draw()}))
    assert_same_bits(again.clients["one/number"][0], one)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["upload", "correct", "gradient", "aggregate", "finish", "combine"])
def test_what_a_hook_returns_is_checked(federation, network, hook):
    with pytest.raises(UserError, match=f"method mine: its {hook} returned another tree than it received") as error:
        run(federation, network, FedAvg(TRAINING, {"mine": Wrong(hook)}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("methods", "training", "message"),
    [
        ({"a": Task(), "b": Task()}, TRAINING, "methods a and b: each has a task of its own, expected at most one"),
        ({"a": Gradient(), "b": Gradient()}, TRAINING, "methods a and b: each has a gradient"),
        ({"a": Task()}, TRAINING.replace(task_loss=lambda view: 0.0), "method a: training.task_loss is given too"),
        ({}, TRAINING.replace(momentum=float("nan")), r"momentum nan is outside \[0, 1\)"),
        ({}, TRAINING.replace(weight_decay=float("nan")), "weight_decay nan is not finite"),
        ({}, TRAINING.replace(epochs=0), "epochs 0 is not positive"),
        ({}, TRAINING.replace(steps=0), "steps 0 is too small, expected >= 1"),
        ({}, TRAINING.replace(steps=3, phases=(Phase("head", 1),)), "steps and phases are given"),
        ({}, TRAINING.replace(phases=(Phase("heads", 1),)), "part heads: the network has no such layer"),
        ({}, TRAINING.replace(optimizer=jax.tree_util.Partial(max)), "momentum 0.5 is of SGD"),
        ({}, KEPT.replace(momentum=0.0), "momentum_reset=False, but momentum is 0; set momentum or"),
        ({}, KEPT.replace(phases=(Phase("all", 1),)), "momentum_reset=False and phases are given; each"),
        ({"a": FedNova()}, KEPT, "FedNova: its effective number of steps assumes that momentum starts at zero; set"),
        ({"a": Scaffold("fednova")}, KEPT, "Scaffold: its effective number of steps assumes"),
        ({"a": FedCM()}, KEPT, "FedCM: its effective number of steps assumes"),
        ({"top_k": TopK(0.0)}, TRAINING, r"share 0 is outside \(0, 1\]"),
        ({"clip": ClipUpdate(0.0)}, TRAINING, "max_norm 0 is not positive"),
        ({"noise": NoisyUpdate(-1.0)}, TRAINING, "deviation -1 is negative"),
    ],
)
def test_invalid_values_are_rejected(federation, network, methods, training, message):
    with pytest.raises(UserError, match=message) as error:
        run(federation, network, FedAvg(training, methods))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_private_part_that_is_not_there(federation, network):
    with pytest.raises(UserError, match="part tail: the network has no such layer, at the top it has Dense_0, Dense_1"):
        run(federation, network, FedAvg(TRAINING, private="tail"))


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


@pytest.mark.slow
def test_what_changes_nothing_of_an_upload(float64, federation, network):
    """A large norm, no noise and a share of 1: updates are sent instead of models, with the same mean."""
    methods = {"clip_update": ClipUpdate(1e6), "noisy_update": NoisyUpdate(0.0), "top_k": TopK(1.0)}
    plain = run(federation, network, FedAvg(TRAINING, {"scaffold": Scaffold()}), rounds=3)
    changed = run(federation, network, FedAvg(TRAINING, {"scaffold": Scaffold(), **methods}), rounds=3)
    assert_close(changed.variables, plain.variables, 1e-9)


@pytest.mark.slow
def test_top_k_keeps_what_it_does_not_send(float64, federation, network):
    """Over rounds of one client, everything that was not sent is still there: what was sent and the rest add up."""
    alone = federation.with_partition(federation.owned_rows()[:1])
    start = network.init(jax.random.key(3))
    result = run(alone, network, FedAvg(TRAINING, {"top_k": TopK(0.05)}), rounds=1, variables=start)
    whole = run(alone, network, FedAvg(TRAINING), rounds=1, variables=start)
    kernel = result.variables.params["Dense_0"]["kernel"] - start.params["Dense_0"]["kernel"]
    assert 0 < np.count_nonzero(kernel) <= np.ceil(0.05 * kernel.size)
    residual = jax.tree.map(lambda leaf: leaf[0], result.state.clients.memory["top_k"])
    assert_close(jax.tree.map(np.add, result.variables.params, residual), whole.variables.params, 1e-9)


@pytest.mark.parametrize("method", [FedDyn(0.1), FedDC(0.1)])
def test_a_method_says_how_clients_are_weighted(method):
    assert FedAvg(TRAINING).weights_by == "size"
    assert FedAvg(TRAINING, {"mine": method}).weights_by == "equal"
    assert FedAvg(TRAINING, {"mine": method}, weighting="size").weights_by == "size"


def test_feddc_counts_whole_batches_where_the_last_is_dropped():
    sizes = jnp.array([33.5, 31.0, 64.0])
    whole = LocalTraining(batch_size=32, epochs=2)
    assert whole.mean_client_steps(sizes).tolist() == [4, 2, 4]
    assert whole.replace(drop_last=True).mean_client_steps(sizes).tolist() == [2, 0, 4]


@pytest.mark.slow
def test_numbers_of_local_steps(federation, network):
    """Fractions of an epoch are rounded up to whole steps; a number of steps is the same for all clients."""

    def steps(**changes):
        result = run(federation, network, FedAvg(TRAINING.replace(**changes)))
        return result.clients["steps"][0].tolist(), result

    per_epoch = [3, 1, 5, 3, 3]
    assert steps(epochs=0.5)[0] == [2, 1, 3, 2, 2]
    assert steps(epochs=1.5)[0] == [5, 2, 8, 5, 5]
    assert steps(epochs=2.0)[0] == [2 * n for n in per_epoch]
    assert_same_bits(steps(epochs=2.0)[1].variables, steps(epochs=2)[1].variables)
    assert steps(steps=4)[0] == [4] * 5
    assert steps(drop_last=True)[0] == [2, 0, 5, 2, 2] == [n // 8 for n in (23, 7, 40, 21, 19)]
    assert steps(drop_last=True, steps=4)[0] == [4, 0, 4, 4, 4]
    _, short = steps(steps=1)
    _, whole = steps(steps=1, batch_size=64)
    losses = short.clients["task_loss"][0], whole.clients["task_loss"][0]
    assert np.isfinite(losses).all() and not np.allclose(*losses)  # of a batch, and of all


@pytest.mark.slow
def test_phases_are_separate_trainings(float64, federation, network):
    """Two phases of everything are two epochs with a fresh optimizer between them: without momentum the same."""
    plain = TRAINING.replace(momentum=0.0)
    two = run(federation, network, FedAvg(plain.replace(phases=(Phase("all", 1), Phase("body+head", 1)))))
    assert_close(two.variables, run(federation, network, FedAvg(plain.replace(epochs=2))).variables, 1e-9)
    with_momentum = (Phase("all", 1), Phase("all", 1))
    two = run(federation, network, FedAvg(TRAINING.replace(phases=with_momentum)))
    one = run(federation, network, FedAvg(TRAINING.replace(epochs=2)))
    assert not np.allclose(two.variables.params["Dense_0"]["kernel"], one.variables.params["Dense_0"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [None, jax.tree_util.Partial(optax.adam)])
def test_a_state_of_the_optimizer_that_is_kept(float64, federation, network, optimizer):
    """Two rounds of one client that takes a step in each, of all of its data, are one round of two steps."""
    alone = federation.with_partition(federation.owned_rows()[:1])
    training = LocalTraining(batch_size=64, learning_rate=0.05, momentum=0.0 if optimizer else 0.5, optimizer=optimizer)
    run_alone = functools.partial(run, alone, network, variables=network.init(jax.random.key(3)))
    once = run_alone(FedAvg(training.replace(epochs=2)))
    kept, reset = (run_alone(FedAvg(training.replace(momentum_reset=is_reset)), rounds=2) for is_reset in (False, True))
    assert_close(kept.variables, once.variables, 1e-12)
    assert np.abs(kept.variables.params["Dense_0"]["kernel"] - reset.variables.params["Dense_0"]["kernel"]).max() > 1e-3
    assert reset.state.clients.memory == {}


@pytest.mark.slow
def test_a_frozen_and_a_private_part_take_no_part_in_uploads(float64, federation, network):
    start = network.init(jax.random.key(3))
    for algorithm in (FedAvg(TRAINING, private="head"), FedAvg(TRAINING.replace(freeze="head"))):
        noisy = algorithm.replace(methods={"noisy_update": NoisyUpdate(1.0)})
        result = run(federation, network, noisy, variables=start)
        assert_same_bits(result.state.server.variables.params["Dense_1"], start.params["Dense_1"])


@pytest.mark.slow
def test_fedmr_draws_other_rows_than_dropout(federation, network):
    """Lite rows depend on the name under which the method goes, and on nothing else of the config."""
    lite = FedMR(lite=2, inter=0.5, initial_prototypes=True)
    first, second = (run(federation, network, FedAvg(TRAINING, {name: lite})) for name in ("fedmr", "again"))
    assert not np.array_equal(first.clients["fedmr/inter"], second.clients["again/inter"])
