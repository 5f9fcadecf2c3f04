"""Algorithms: known trajectories of scalar clients, options, and properties. ``test_round_reference.py`` has whole
rounds of them."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import Given, assert_close, assert_same_bits, cases, check
from engine_rounds import run_rounds

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, methods, nn, simulate
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.engine import cohort as cohorts
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.optim import aggregation, schedules
from fedjax_collapse.optim.aggregation import Upload, damped_adagrad, damped_adam, damped_momentum, damped_yogi
from fedjax_collapse.schema.options import constructor
from fedjax_collapse.training.server import evaluated

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9, weight_decay=1e-3)


class Scalar(flax.linen.Module):
    """One parameter w; an "image" is (curvature, target) of the client's quadratic."""

    @flax.linen.compact
    def __call__(self, images, mask, train):
        w = self.param("w", flax.linen.initializers.zeros, ())
        return Outputs(features=images[:, 0, 0, :], logits=jnp.broadcast_to(w, (len(images), 2)))


def quadratic(view):
    """Mean over true rows of ``curvature (w - target)^2 / 2``."""
    outputs, batch = view.outputs, view.batch
    curvature, target = outputs.features[:, 0], outputs.features[:, 1]
    losses = curvature * (outputs.logits[:, 0] - target) ** 2 / 2
    return jnp.sum(jnp.where(batch.mask, losses, 0)) / jnp.maximum(jnp.sum(batch.mask), 1)


def clients_of(*sizes):
    """Two clients with the quadratics 1 (w - 2)^2 / 2 and 3 (w + 1)^2 / 2, each in so many examples."""
    images = np.repeat([[1.0, 2.0], [3.0, -1.0]], sizes, axis=0).reshape(-1, 1, 1, 2)
    labels, parts = np.zeros(len(images), int), np.split(np.arange(len(images)), [sizes[0]])
    return Federation.from_arrays(images, labels, parts, images, labels, class_names=("a", "b"))


SCALAR = Model(Scalar(), (1, 1, 2))
FULL = [(1, 2)] * 3


def states(algorithm, federation, cohorts):
    """The state after each round, with the given cohorts (numbered from 1)."""
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    state = engine.init(algorithm, SCALAR, SCALAR.init(jax.random.key(0)), 2, jax.random.key(1))
    after = []
    for cohort in cohorts:
        rounds = engine.RoundSpec(SCALAR, engine.Layout(engine.Chunked(2), len(cohort)))
        data = engine.Assignment(federation.ownership, Given(cohort=jnp.array(cohort) - 1))
        state = engine.run_rounds(rounds, algorithm, state, data, federation.train, 1).state
        after.append(jax.device_get(state._replace(key=None)))  # the next round reuses its buffers
    return after


def server_path(after):
    return [float(state.server.variables.params["w"]) for state in after]


def training(**changes):
    return LocalTraining(**{**dict(epochs=2, batch_size=2, learning_rate=0.1, task_loss=quadratic), **changes})


def evaluated_path(algorithm, after):
    return [float(evaluated(algorithm, SCALAR, state.server, state.clients).params["w"]) for state in after]


METHODS = {"scaffold": methods.Scaffold(), "fednova": methods.FedNova()}
METHODS |= {"feddyn": methods.FedDyn(alpha=0.5), "feddc": methods.FedDC(alpha=0.5)}
TABLE = {  # the server's model after each round, and as evaluated
    "scaffold": ([-0.065, -0.1295, -0.17313],) * 2,
    "feddyn": ([-0.125, -0.2208875, -0.2690997813], [-0.0625, -0.14169375, -0.2053967656]),
    "feddc": ([-0.125, -0.2641375, -0.3399616563], [-0.0625, -0.16331875, -0.2516402031]),
    "damped": ([-0.0325, -0.0755625, -0.1163703125],) * 2,
}
PARTIAL = [(1,), (2,), (1,), (2,), (1,), (1, 2)]


def algorithm_of(name, options=None, **changes):
    """FedAvg with the method of this name, with other options."""
    own = {name: METHODS[name].replace(**options or {})} if name in METHODS else {}
    damped = None if own else jax.tree_util.Partial(damped_momentum, 0.5)
    return FedAvg(training(**changes), own, server_optimizer=damped)


@pytest.mark.parametrize("name", TABLE)
def test_two_scalar_clients(float64, name):
    algorithm, (path, expected) = algorithm_of(name), TABLE[name]
    after = states(algorithm, clients_of(1, 1), FULL)
    np.testing.assert_allclose(server_path(after), path, atol=1e-10)
    np.testing.assert_allclose(evaluated_path(algorithm, after), expected, atol=1e-10)
    if name in ("feddyn", "feddc"):
        cloud = algorithm_of(name, dict(evaluate="cloud"))
        assert evaluated(cloud, SCALAR, after[-1].server, after[-1].clients) is after[-1].server.variables


def test_variates_of_scaffold_after_one_step_are_gradients(float64):
    """At 0, of the two quadratics; the server's is their mean."""
    (after,) = states(algorithm_of("scaffold", epochs=1), clients_of(1, 1), FULL[:1])
    shared, memory = (tree["scaffold"]["w"] for tree in (after.server.shared, after.clients.memory))
    np.testing.assert_allclose([*memory, shared], [-2, 3, 0.5], atol=1e-12)


def test_a_loss_may_be_a_number():
    assert server_path(states(FedAvg(training(task_loss=lambda view: 3.0)), clients_of(1, 1), FULL[:1])) == [0.0]


def test_feddyn_evaluates_everybodys_latest_model(float64):
    """With half of the clients in each round: a client's model after its last round, 0 before its first."""
    plain, latest = algorithm_of("feddyn"), algorithm_of("feddyn", dict(evaluate="all"))
    after = states(latest, clients_of(1, 1), PARTIAL)
    assert server_path(after) == server_path(states(plain, clients_of(1, 1), PARTIAL))
    local = np.zeros(2)
    for cohort, w, state in zip(PARTIAL, evaluated_path(plain, after), after, strict=True):
        if len(cohort) == 1:  # the mean over the cohort is then that client's model
            local[cohort[0] - 1] = w
            np.testing.assert_allclose(evaluated_path(latest, [state]), [local.mean()], rtol=1e-12)


@cases(
    (damped_adagrad(1.0, 0.5), [[0.1383236633, 2.2209294429]]),
    (damped_adam(1.0, 0.5), [[-7.4463704434, 4.0592020592]]),
    (damped_yogi(1.0, 0.5), [[-7.4299372080, 4.0632509702]]),
    (damped_momentum(0.5), [[0.8, 2.1], [0.65, 2.0]]),
    (optax.sgd(1.0, momentum=0.5), [[0.6, 2.2], [0.3, 2.0]]),
)
def test_server_optimizers(optimizer, expected, float64):
    """The params after the last of two steps, or after both."""
    path = [jnp.array([1.0, 2.0])]
    state = optimizer.init(path[0])
    for delta in ([-0.4, 0.2], [-0.1, -0.3]):
        updates, state = optimizer.update(-jnp.array(delta), state, path[-1])
        path.append(optax.apply_updates(path[-1], updates))
    np.testing.assert_allclose(path[-len(expected) :], expected, rtol=1e-9)


def test_methods_of_other_classes_are_other_programs():
    """Also under one name, and with equal fields, where JAX takes dataclasses of other classes for equal."""
    kinds = methods.DeCov, methods.ClipUpdate, methods.NoisyUpdate
    made = [jax.tree.structure(FedAvg(methods={"it": kind()})) for kind in kinds]
    assert len(set(made)) == len(kinds) and made[0] != made[1] != made[2] != made[0]
    same = FedAvg(methods={"it": kinds[0](0.5), "other": kinds[1]()})
    assert list(jax.tree.map(lambda leaf: leaf, same).methods.items()) == list(same.methods.items())
    assert jax.tree.structure(same) == jax.tree.structure(same.replace(methods=dict(same.methods)))


@cases(*METHODS)
def test_drop_last_leaves_small_clients_as_they_are(name, float64):
    """Of 3 and 1 examples in batches of 2, one step and none: the second client keeps its weight and moves nothing."""
    (state,) = states(algorithm_of(name, epochs=1, drop_last=True), clients_of(3, 1), [(1, 2)])
    moved = 0.2  # by one step from 0 with gradient -2
    expected = {"scaffold": 0.75, "fednova": 0.75 * 0.75, "feddyn": 0.5 + 0.5, "feddc": 0.5 + 0.5}[name] * moved
    np.testing.assert_allclose(server_path([state]), [expected], rtol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.server.shared, state.clients.memory)))
    for leaf in jax.tree.leaves(state.clients.memory):
        assert leaf[0] != 0 and leaf[1] == 0


def test_drop_last_counts_what_was_seen(float64):
    algorithm = FedAvg(training(batch_size=2, drop_last=True))
    record = run_rounds(clients_of(3, 1), SCALAR, algorithm, engine.Vectorized(), 1, max_rounds=1).record
    np.testing.assert_array_equal(record.steps, [[2, 0]])
    losses = [(w - 2) ** 2 / 2 for w in (0, 0.2)]
    np.testing.assert_allclose(record.metrics["task_loss"], [[np.mean(losses), np.nan]], rtol=1e-12)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 7])
def test_examples_seen_are_those_of_the_batches(size, drop_last):
    """Batches of 3, counted one by one over three epochs; a client without batches takes no step."""
    training = LocalTraining(batch_size=3, drop_last=drop_last, steps=5)
    sizes = [min(3, size - first) for first in range(0, size, 3) if not drop_last or first + 3 <= size]
    assert training.steps_per_epoch(jnp.array(size)) == len(sizes)
    [(part, steps)] = training.phase_steps(jnp.array(size))
    assert (part, steps) == ("all", 5 if sizes else 0)
    assert training.mean_client_steps(jnp.array(float(size))) == steps
    seen = np.cumsum([0, *3 * sizes])
    counted = [training.examples_in(jnp.array(step), jnp.array(size)) for step in range(len(seen))]
    np.testing.assert_array_equal(counted, seen)


def test_schedules(float64):
    cosine = LocalTraining(learning_rate=0.01, schedule=jax.tree_util.Partial(schedules.cosine, rounds=100))
    rates = [cosine.learning_rate_in(jnp.array(t)) for t in (0, 1, 50, 99)]
    np.testing.assert_allclose(rates, [0.01, 0.0099975328, 0.005, 0.0000024672], atol=1e-10)
    decay = LocalTraining(learning_rate=0.1, schedule=jax.tree_util.Partial(schedules.decay))
    np.testing.assert_allclose(
        [decay.learning_rate_in(jnp.array(t)) for t in (0, 1, 3)], 0.1 * 0.998 ** np.array([0, 1, 3])
    )
    assert LocalTraining(learning_rate=0.1).learning_rate_in(7) == 0.1
    updates, _ = (o := decay.make_optimizer(2)).update(jnp.array(1.0), o.init(jnp.array(0.0)), jnp.array(0.0))
    np.testing.assert_allclose(updates, -0.1 * 0.998**2)


@pytest.mark.slow
def test_a_head_that_is_trained_and_thrown_away(federation):
    """Clients train it, the server keeps the initial one: what else they learn differs from a frozen head's."""
    model = Model(nn.MLP(4, hidden=(5,)), federation.input_shape)
    variables = model.init(jax.random.key(0))
    after = {}
    for freeze in ("none", "head", "head_at_server"):
        algorithm = FedAvg(TRAINING.replace(freeze=freeze))
        result = simulate(federation, model, algorithm, rounds=1, key=jax.random.key(1), variables=variables)
        after[freeze] = result.variables.params
    assert_same_bits(after["head_at_server"]["Dense_1"], variables.params["Dense_1"])
    assert_same_bits(after["head_at_server"]["Dense_0"], after["none"]["Dense_0"])
    assert np.any(after["head"]["Dense_0"]["kernel"] != after["none"]["Dense_0"]["kernel"])


def test_server_optimizer_on_running_statistics(federation):
    """``all`` moves them like params: with a server learning rate of 2, twice as far."""
    model = Model(nn.MLP(4, hidden=(5,), norm="batch"), federation.input_shape)
    variables = model.init(jax.random.key(0))
    after = {}
    for optimized in ("params", "all"):
        optimizer = jax.tree_util.Partial(optax.sgd, 2.0)
        algorithm = FedAvg(TRAINING, server_optimizer=optimizer, optimized=optimized)
        result = simulate(federation, model, algorithm, rounds=1, key=jax.random.key(1), variables=variables)
        after[optimized] = result.variables
    assert_close(after["all"].params, after["params"].params, 1e-6)
    twice = jax.tree.map(lambda w, mean: w + 2 * (mean - w), variables.batch_stats, after["params"].batch_stats)
    assert_close(after["all"].batch_stats, twice, 1e-6)


def test_weights_by_whole_batches(federation):
    """Sizes 23, 7, 40, 21, 19 in batches of 8: weights 2, 0, 5, 2, 2 elevenths."""
    algorithm = jax.tree.map(jnp.asarray, FedAvg(TRAINING, weighting="batches"))

    @jax.jit
    def weights(*cohort):
        return cohorts.stack(algorithm, jnp.stack(cohort), federation.ownership.sizes, jax.random.key(0), None).weight

    np.testing.assert_allclose(weights(0, 1, 2, 3, 4, 5), np.array([2, 0, 5, 2, 2, 0]) / 11, rtol=1e-6)
    np.testing.assert_array_equal(weights(1), [1.0])


def test_parts_of_networks(federation):
    model = Model(nn.SmallCNN(4, channels=(3,)), federation.input_shape)
    variables = model.init(jax.random.key(0))

    def names(part):
        return masks.select(model.mask(part), variables).keys()

    mask = model.mask("batch_norm")
    picked = masks.select(mask, variables)
    params = {"params/BatchNorm_0/scale", "params/BatchNorm_0/bias"}
    assert picked.keys() == params | {"batch_stats/BatchNorm_0/mean", "batch_stats/BatchNorm_0/var"}
    doubled = masks.replace(variables, {name: 2 * leaf for name, leaf in picked.items()})
    assert_same_bits(doubled, masks.where(mask, jax.tree.map(lambda leaf: 2 * leaf, variables), variables))
    head = {"params/Dense_0/kernel", "params/Dense_0/bias"}
    assert names("none") == set() and names("head") == names("Dense_0") == head
    everything = picked.keys() | head | {"params/Conv_0/kernel"}
    assert names("all") == names("head+body") == everything and names("body") == everything - head
    assert names("Dense_0/bias + batch_norm") == picked.keys() | {"params/Dense_0/bias"}
    assert names("all - head") == names("body") and names("all - body") == names("head")
    assert names("body - batch_norm") == {"params/Conv_0/kernel"} and names("all - head - Conv_0") == picked.keys()
    assert names("all - Dense_0/bias+head") == everything  # what is joined is read last
    deep = Model(nn.MLP(4, hidden=(3,) * 10), federation.input_shape)
    of_deep = masks.select(deep.mask("head"), jax.eval_shape(deep.init, jax.random.key(0)))
    assert of_deep.keys() == {"params/Dense_10/kernel", "params/Dense_10/bias"}


def test_orthogonal_head(float64, federation):
    model = Model(nn.MLP(4, hidden=(9,)), federation.input_shape)
    variables = model.init(jax.random.key(0))
    changed = orthogonal_head(model, variables, jax.random.key(1))
    kernel = changed.params["Dense_1"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(4), atol=1e-14)
    back = {**changed.params["Dense_1"], "kernel": variables.params["Dense_1"]["kernel"]}
    assert_same_bits(changed._replace(params={**changed.params, "Dense_1": back}), variables)


def scheduled(function, **options):
    return FedAvg(LocalTraining(schedule=constructor(function, **options)))


@cases(
    (FedAvg(private="batch_norm"), "part batch_norm: the network has no BatchNorm"),
    (FedAvg(LocalTraining(freeze="head")), "part head: the network has no such layer, at the top it has w"),
    (FedAvg(private="bn"), "part bn: the network has no such layer, at the top it has w"),
    (FedAvg(weighting="sizes"), "FedAvg: weighting 'sizes': expected one of default, size, equal, batches"),
    (FedAvg(LocalTraining(freeze="body")), "part head: the network has no such layer"),
    (FedAvg(LocalTraining(schedule="linear")), "schedule 'linear': expected Partial"),
    (scheduled(schedules.cosine, rounds=0), "LocalTraining: schedule: rounds 0 is too small"),
    (scheduled(schedules.cosine), "LocalTraining: schedule cannot be called with a round .*rounds"),
    (scheduled(lambda round: jnp.ones(3)), r"LocalTraining: schedule returns shape \(3,\), expected a number"),
)
def test_wrong_values(algorithm, message):
    check(message, algorithm.check, SCALAR)


@pytest.mark.parametrize("method", [methods.FedNova(), methods.FedCM()], ids=lambda method: type(method).__name__)
def test_without_momentum_no_buffer_is_carried(float64, federation, network, method):
    """Rounds are as with a momentum of 0 that is traced, for which SGD has a buffer."""
    algorithm = FedAvg(TRAINING.replace(momentum=0.0), {"it": method})
    variables = network.init(jax.random.key(0))

    def run(algorithm):
        after = run_rounds(federation, network, algorithm, engine.Vectorized(), variables=variables).state.server
        optimizer = jax.eval_shape(
            jax.tree.map(jnp.asarray, algorithm).training.make_optimizer().init, variables.params
        )
        return after, jax.tree.map(lambda leaf: leaf.shape, optimizer)

    (traced, of_traced), (without, nothing) = run(algorithm), run(algorithm.enabled())
    assert_close(without, traced, 1e-13)
    assert jax.tree.leaves(of_traced) and not jax.tree.leaves(nothing)


def test_aggregation_is_a_weighted_mean_and_padding_clients_add_nothing():
    stacked = {"a": jnp.arange(12.0).reshape(3, 2, 2), "n": jnp.array([1, 2, 3])}
    weights, is_real = jnp.array([0.25, 0.75, 0.0]), jnp.array([True, True, False])
    stacked["a"] = stacked["a"].at[2].set(jnp.nan)
    upload = jax.vmap(aggregation.weigh)(Upload({"a": stacked["a"]}, {"n": stacked["n"]}), weights, is_real)
    total = aggregation.sum_clients(upload)
    np.testing.assert_allclose(
        total.mean["a"], 0.25 * np.arange(4).reshape(2, 2) + 0.75 * np.arange(4, 8).reshape(2, 2)
    )
    assert total.total["n"] == 3 and total.total["n"].dtype == stacked["n"].dtype


OUT_OF_RANGE = dict(
    batch_size=0, epochs=0, steps=0, learning_rate=0.0, weight_decay=-1.0, momentum=1.0, clip_norm=0.0,
    schedule="linear",
)  # fmt: skip


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_wrong_hyper_parameters(option):
    check(f"LocalTraining: {option} ", FedAvg(training(**{option: OUT_OF_RANGE[option]})).check)
