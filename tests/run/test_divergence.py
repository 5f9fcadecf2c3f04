"""Losses and models that are not finite: where they come from is told, or the clients are left out; nothing is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TRAINING, assert_close, assert_same_bits, cases
from flax import struct

import fedjax_collapse as fc
from fedjax_collapse import MOON, Diverged, FedAvg, Method, Recalibrate, Scaffold, Term, UserError, engine, option
from fedjax_collapse.engine import program
from fedjax_collapse.run.simulation import Callbacks, Hardware, Run, Schedule, simulate_runs

pytestmark = pytest.mark.slow

LAYOUTS = {
    "chunked": dict(client_map=engine.Chunked(2)),
    "vectorized": dict(client_map=engine.Vectorized()),
    "sharded": dict(client_map=engine.Sharded(2, engine.Chunked(1))),
    "host": dict(client_map=engine.Chunked(1), storage="host"),
    "host_sharded": dict(client_map=engine.Sharded(2, engine.Chunked(1)), storage="host"),
}


class Bomb(fc.Regularizer):
    """A term that is not finite on a client's short batch, its last one, from some round on."""

    strength: float = 1.0
    client: int = option(3)
    first_round: float = 0.0

    def penalty(self, view):
        is_short = jnp.sum(view.batch.mask) < view.training.batch_size
        is_now = (view.client.id == self.client) & (view.round >= self.first_round) & is_short
        return {"burst": Term(self.strength, jnp.where(is_now, jnp.nan, 0.0))}


class Wrong(Method):
    """A client's gradients are not finite."""

    client: int = option(1)

    def correct(self, gradient, params, view):
        return jax.tree.map(lambda g: jnp.where(view.client.id == self.client, jnp.inf, g), gradient)


class Garbled(Method):
    """What a client sends is not finite."""

    client: int = option(2)

    def upload(self, update, view):
        return jax.tree.map(lambda u: jnp.where(view.client.id == self.client, jnp.nan, u), update), view.memory


def bombed(first_round=0.0, training=TRAINING, **methods):
    return FedAvg(training, {**methods, "bomb": Bomb(first_round=first_round)})


def run(federation, network, algorithm, **options):
    return fc.simulate(federation, network, algorithm, **{"rounds": 5, "key": jax.random.key(0), **options})


def diverged(*arguments, **options):
    with pytest.raises(Diverged) as error:
        run(*arguments, **options)
    assert "\n" not in str(error.value)
    return error.value


@cases("sharded", "host")
def test_a_run_stops_and_says_where(layout, federation, network, tmp_path, monkeypatch):
    """After rows, arrays and checkpoint are written; a restart says the same at once, or continues if it shall. It is
    the first round of a call.
    """
    options = dict(folder=tmp_path, evaluate_every=2, checkpoint_every=2, **LAYOUTS[layout])
    error = diverged(federation, network, bombed(first_round=2), **options)
    file = tmp_path / "divergence.npz"
    start = f"round 3, client 3, step 2: the term bomb/burst is not finite; what the step was given is in {file}; "
    assert str(error).startswith(start + "lower training.learning_rate (now 0.05) or set training.clip_norm")
    (result,) = error.results
    assert [row["round"] for row in result.metrics] == [2, 4] and result.rounds_done == 4
    with np.load(file) as arrays:
        assert (arrays["client"], arrays["step"], arrays["mask"].sum()) == (3, 2, 5)
        assert np.isfinite(arrays["inputs"]).all() and np.isfinite(arrays["params/Dense_0/kernel"]).all()

    with monkeypatch.context() as patched:
        patched.setattr(program.Program, "advance", None)
        again = diverged(federation, network, bombed(first_round=2), **options)
    assert str(again) == str(error)
    assert_same_bits(again.results[0].clients, result.clients)
    assert_same_bits(again.found[0].arrays, error.found[0].arrays)
    result = run(federation, network, bombed(first_round=2), on_nan="continue", **options)
    assert [row["round"] for row in result.metrics] == [2, 4, 5]


@pytest.mark.long
def test_the_debug_layout_tells_the_same(federation, network, tmp_path):
    """It stops whatever ``on_nan`` is; without a folder the rounds before are run again from the start."""
    traced = diverged(federation, network, bombed(first_round=1), client_map=engine.Chunked(1))
    assert str(traced).startswith("round 2, client 3, step 2: the term bomb/burst is not finite; lower")
    for folder in (tmp_path, None):  # from the beginning, as no checkpoint was due
        options = dict(client_map=engine.Loop(), folder=folder, on_nan="continue")
        debugged = diverged(federation, network, bombed(first_round=1), **options)
        assert ("divergence.npz" in str(debugged)) == (folder is not None)
        assert str(debugged).startswith("round 2, client 3, step 2: the term bomb/burst is not finite")
        assert "on_nan" not in str(debugged) and [row["round"] for row in debugged.results[0].metrics] == [1]
    for name, array in debugged.found[0].arrays.items():
        assert_close(traced.found[0].arrays[name], array, 1e-5)


@pytest.mark.long
def test_what_else_is_not_finite(federation, network):
    """A client's last step, what it sends, the server's step; and a term before any step."""
    training = TRAINING.replace(clip_norm=100.0)
    message = str(diverged(federation, network, FedAvg(training, {"wrong": Wrong()})))
    assert message.startswith("round 1, client 1, step 0: the parameters Dense_0/bias, Dense_0/kernel, Dense_1/bias, ")
    assert "lower training.learning_rate (now 0.05) or lower training.clip_norm; on_nan=continue continues, " in message
    message = str(diverged(federation, network, FedAvg(TRAINING.replace(weight_decay=1e23))))
    assert "; lower training.weight_decay (now 1e+23): a step takes 5e+21 times the params away; on_nan=" in message
    message = str(diverged(federation, network, FedAvg(TRAINING, {"garbled": Garbled()})))
    assert message.startswith("round 1, client 2: what it sends is not finite; lower")
    server = FedAvg(TRAINING, server_optimizer=jax.tree_util.Partial(optax.sgd, 3e38))
    message = str(diverged(federation, network, server, on_nan="skip_client"))
    assert message.startswith("round 1: the loss of the server's model is not finite, what its clients sent is; lower")
    assert message.endswith("on_nan=continue continues")
    message = str(diverged(federation, network, FedAvg(TRAINING, {"bomb": Bomb(client=1)})))
    assert "client 1, step 0: the term bomb/burst is not finite; no step was taken before: look at" in message


def test_of_runs_that_go_together_the_others_are_finished(federation, network, tmp_path, monkeypatch):
    group = [bombed(first_round) for first_round in (100.0, 1.0, 100.0)]
    folders = [tmp_path / str(i) for i in range(3)]
    runs = [Run(federation, a, jax.random.key(i), f) for i, (a, f) in enumerate(zip(group, folders, strict=True))]
    schedule, hardware = Schedule(3, checkpoint_every=1), Hardware(engine.Chunked(1), engine.Vectorized())
    unsaved, continuing = [r._replace(folder=None) for r in runs], schedule._replace(on_nan="continue")
    expected = simulate_runs(unsaved, network, continuing, hardware)
    announced = []
    for _ in range(2):  # the second time from the folders
        with pytest.raises(Diverged, match="round 2, client 3, step 2: the term bomb/burst") as error:
            simulate_runs(runs, network, schedule, hardware, Callbacks(announce=announced.append))
        assert list(error.value.found) == [1] and str(folders[1]) in str(error.value)
        for result, other, folder in zip(error.value.results, expected, folders, strict=True):
            assert_same_bits(result.variables, other.variables)
            assert [row["round"] for row in result.metrics] == [1, 2, 3] and (folder / "metrics.jsonl").exists()
    again = [line for line in announced if "not finite" in line]
    assert again == ["round 2 is not finite; it is run again to find out why"]


@struct.dataclass
class Without(fc.Participation):
    """Everybody but one client, which drops out in every round."""

    client: int = option(3)

    def survivors(self, key, cohort, num_clients):
        return jnp.where(cohort == self.client, num_clients, cohort)


METHODS = {"scaffold": Scaffold(), "fednova": fc.FedNova(), "moon": MOON(), "fedmr": fc.FedMR(inter=0.1)}


@cases("chunked", "vectorized", "host_sharded")
def test_a_skipped_client_is_as_one_that_dropped_out(layout, federation, network):
    """To the bit: models, states, metrics and rows. All rounds of a call are counted."""
    algorithm = bombed(**(METHODS if layout == "chunked" else {"scaffold": Scaffold()}))
    options = dict(evaluate_every=2, **LAYOUTS[layout])
    skipped = run(federation, network, algorithm, rounds=2, on_nan="skip_client", **options)
    expected = run(federation, network, algorithm, rounds=2, participation=Without(dropout=0.0), **options)
    assert_same_bits((skipped.state.server, skipped.state.clients), (expected.state.server, expected.state.clients))
    clients, (row,) = dict(skipped.clients), skipped.metrics
    np.testing.assert_array_equal(clients.pop("skipped_clients"), [[0, 0, 0, 1, 0]] * 2)
    assert_same_bits(clients, expected.clients)
    assert row.pop("train/skipped_clients") == 2
    assert_same_bits(row, expected.metrics[0])


@cases("device", "host")
def test_without_a_client_left_the_server_stays_as_it_is(storage, federation, network, tmp_path):
    """Also what methods and optimizer keep there; a folder of such a run is no other's."""
    adam = jax.tree_util.Partial(optax.adam, 0.1)
    bombs = {f"bomb{client}": Bomb(first_round=1.0, client=client) for client in range(5)}
    training = TRAINING.replace(batch_size=16)  # all have a short batch
    algorithm = FedAvg(training, {"scaffold": Scaffold(), **bombs}, server_optimizer=adam)
    result = run(federation, network, algorithm, on_nan="skip_client", rounds=3, storage=storage, folder=tmp_path)
    expected = run(federation, network, algorithm, on_nan="skip_client", rounds=1, storage=storage)
    assert_same_bits((result.state.server, result.state.clients), (expected.state.server, expected.state.clients))
    assert [row["train/skipped_clients"] for row in result.metrics] == [0, 5, 5]
    assert np.isnan(result.clients["task_loss"][1:]).all() and not result.clients["steps"][1:].any()
    with pytest.raises(UserError, match="on_nan is skip_client there, absent here"):
        run(federation, network, algorithm, on_nan="continue", rounds=3, storage=storage, folder=tmp_path)


class Counting(Method):
    """The server adds up who reports, from the initial model on, which is not finite for some clients."""

    failing: float = 3.0  # a client's number, or -1 for all; traced, so that both are one program

    when_measured = "start"

    def init_shared(self, variables, shapes):
        return jnp.zeros(2)

    def finish(self, view):
        report = jnp.stack([jnp.ones(()), view.client.size.astype(float)])
        fails = ((view.client.id == self.failing) | (self.failing < 0)) & (view.steps == 0)
        return (), jnp.where(fails, jnp.nan, report)

    def combine(self, shared, report):
        return shared + report

    def measure(self, view):
        return self.finish(view)[1]

    def after_round(self, shared, before, after, measured):
        return shared + measured


@cases("sharded", "host_sharded")
def test_a_first_report_that_is_not_finite_is_left_out(layout, federation, network):
    """And its client counted with the first round, in which it takes part; sizes are 23, 7, 40, 21, 19."""
    options = dict(evaluate_every=2, rounds=3, on_nan="skip_client", **LAYOUTS[layout])
    result = run(federation, network, FedAvg(TRAINING, {"counting": Counting()}), **options)
    np.testing.assert_array_equal(result.state.server.shared["counting"], [4 + 3 * 5, 89 + 3 * 110])
    np.testing.assert_array_equal(result.clients["skipped_clients"], [[0, 0, 0, 1, 0], [0] * 5, [0] * 5])
    assert [row["train/skipped_clients"] for row in result.metrics] == [1, 0] and result.clients["steps"].all()
    nobody = FedAvg(TRAINING, {"counting": Counting(failing=-1.0)})
    result = run(federation, network, nobody, **options)
    np.testing.assert_array_equal(result.state.server.shared["counting"], [3 * 5, 3 * 110])


class Surveying(Counting):
    """The server keeps who reports on its last model, of all clients."""

    when_measured = "evaluation"
    unused = ("finish", "combine")

    def init_shared(self, variables, shapes):
        return jnp.full(2, 7.0)

    def after_round(self, shared, before, after, measured):
        return measured


@cases("vectorized", "host_sharded")
def test_a_report_of_all_clients_that_is_not_finite_is_left_out(layout, federation, network):
    """And its client, in the last cohort or not, counted with the last round before the evaluation."""
    options = dict(evaluate_every=2, rounds=3, on_nan="skip_client", participation=0.6, **LAYOUTS[layout])
    result = run(federation, network, FedAvg(TRAINING, {"it": Surveying()}), **options)
    np.testing.assert_array_equal(result.state.server.shared["it"], [4, 89])
    np.testing.assert_array_equal(np.nansum(result.clients["skipped_clients"], axis=0), [0, 0, 0, 2, 0])
    assert [row["train/skipped_clients"] for row in result.metrics] == [1, 1]
    nobody = FedAvg(TRAINING, {"it": Surveying(failing=-1.0)})
    result = run(federation, network, nobody, **options)
    np.testing.assert_array_equal(result.state.server.shared["it"], [7, 7])


class Measuring(Recalibrate):
    """A client's measurement of the new model is not finite."""

    client: int = option(3)

    def measure(self, view):
        measured = Recalibrate.measure(self, view)
        return jax.tree.map(lambda leaf: jnp.where(view.client.id == self.client, jnp.nan, leaf), measured)


@cases(("chunked", {"recalibrate": Recalibrate(), "bomb": Bomb()}), ("host_sharded", {"measuring": Measuring()}))
def test_a_measurement_that_is_not_finite_is_of_one_that_dropped_out(layout, methods, federation, model):
    """And so is a client that diverges in its training, whom nobody else's measurement pays for."""
    options = dict(rounds=2, **LAYOUTS[layout])
    skipped = run(federation, model, FedAvg(TRAINING, methods), on_nan="skip_client", **options)
    expected = run(federation, model, FedAvg(TRAINING, methods), participation=Without(dropout=0.0), **options)
    assert_same_bits(skipped.state.server, expected.state.server)
    np.testing.assert_array_equal(skipped.clients["skipped_clients"], [[0, 0, 0, 1, 0]] * 2)


def test_where_nobody_diverges_skipping_changes_nothing(federation, network):
    one, other = (
        run(federation, network, FedAvg(TRAINING, METHODS), rounds=2, on_nan=on_nan, **LAYOUTS["chunked"])
        for on_nan in ("stop", "skip_client")
    )
    assert_same_bits((one.state.server, one.state.clients), (other.state.server, other.state.clients))
    assert all("skipped" not in name for name in (*one.clients, *one.metrics[0]))


def test_exhausted_memory_is_told_apart(federation, network, monkeypatch, tmp_path):
    """One line that says what to do; other errors of the runtime stay as they are, and the run continues afterwards."""

    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.\nBacktrace:")

    def fail(*arguments):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(program.Program, "advance", fail)
        with pytest.raises(UserError, match=r"out of memory .*: lower engine.clients_at_once or training") as told:
            run(federation, network, FedAvg(TRAINING), rounds=1, folder=tmp_path)
        assert "\n" not in str(told.value) and not isinstance(told.value, Diverged)
        error = jax.errors.JaxRuntimeError("INTERNAL: something else")
        with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
            run(federation, network, FedAvg(TRAINING), rounds=1)
    assert run(federation, network, FedAvg(TRAINING), rounds=1, folder=tmp_path).rounds_done == 1


@pytest.mark.long
def test_measurements_of_a_model_that_is_too_large_are_nobodys_fault(federation, model):
    server = FedAvg(TRAINING, {"recalibrate": Recalibrate()}, jax.tree_util.Partial(optax.sgd, 3e38))
    error = diverged(federation, model, server, on_nan="skip_client", rounds=1)
    assert "round 1: the loss of the server's model is not finite, what its clients sent is" in str(error)
    (result,) = error.results
    variables = result.state.server.variables
    assert np.abs(variables.params["Dense_0"]["kernel"]).max() > 1e30
    assert not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables.batch_stats))
    assert not result.clients["skipped_clients"].any()


def test_first_reports_of_runs_that_go_together(federation, network):
    runs = [
        Run(federation, FedAvg(TRAINING, {"counting": Counting(), "bomb": Bomb(first_round=first)}), jax.random.key(0))
        for first in (0.0, 9.0)
    ]
    hardware = Hardware(engine.Chunked(1), engine.Vectorized())
    results = simulate_runs(runs, network, Schedule(2, participation=0.6, on_nan="skip_client"), hardware)
    for own, result in zip(runs, results, strict=True):
        alone = run(federation, network, own.algorithm, rounds=2, participation=0.6, on_nan="skip_client")
        np.testing.assert_array_equal(result.clients["skipped_clients"], alone.clients["skipped_clients"])
        assert result.clients["skipped_clients"][0, 3] == 1
