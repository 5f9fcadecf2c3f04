"""What breaks the guarantee of a private run is named; what a run spends is in its rows, its folder and its tables."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check, run_at_once
from flax import struct
from scipy.optimize import brentq
from scipy.stats import norm
from small_studies import error_of, start, write_config

import fedjax_collapse as fc
from experiments.configs import base
from fedjax_collapse import DPFedAvg, FedAvg, Model, Participation, Privacy, UserError, engine, methods, nn, simulate
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.results.metrics import metric_of
from fedjax_collapse.run.privacy import guarantee

TRAINING = fc.LocalTraining(batch_size=8, learning_rate=0.05)
POISSON = Participation(0.6, engine.Poisson())
PRIVATE = FedAvg(TRAINING, {"dp": DPFedAvg()})
CLOCK = engine.Clock(1.0, deadline=2.0)
FIXED = r"at least one client is counted, which depends on the others; expected the sampler poisson"


@struct.dataclass
class EveryRound(Participation):
    """All clients in every round, whatever the fraction says."""

    def in_round(self, key, round, num_clients):
        return Participation(1.0)


@struct.dataclass
class Waiting(engine.Clock):
    """The slowest client makes all uploads late."""

    def seconds(self, key, steps):
        return jnp.full(steps.shape, steps.max(initial=0))


class Louder(FedAvg):
    """Something of it might be sent unclipped."""


class Unclipped(DPFedAvg):
    """Says of its noise what the clip makes true."""

    def upload(self, update, view):
        return update, view.memory


def beside(**others):
    return FedAvg(TRAINING, {**others, "dp": DPFedAvg()})


@cases(
        (beside(feddyn=methods.FedDyn()), {}, "method dp: weights of clients 'equal' depend on the other clients"),
        (beside(moon=methods.MOON(), s=methods.Scaffold()), {}, "methods dp and s: clients also send a report of s"),
        (beside(fedproc=methods.FedProc()), {}, "methods dp and fedproc: clients also send a report of fedproc"),
        (beside(ccvr=methods.CCVR()), {}, "methods dp and ccvr: ccvr measures the server's model on the clients' data"),
        (beside(fedamp=methods.FedAMP()), {}, "methods dp and fedamp: fedamp makes the clients' states from those of"),
        (FedAvg(TRAINING, {"dp": DPFedAvg(), "top": methods.TopK()}), {}, "methods dp and top: top changes"),
        (PRIVATE, dict(on_nan="skip_client"), "method dp: on_nan 'skip_client' repeats a round"),
        (PRIVATE, dict(participation=EveryRound(0.2)), "method dp: EveryRound may change who takes part"),
        (PRIVATE, dict(participation=Participation(0.6, engine.Poisson(), clock=Waiting(1.0))), "dp: Waiting may chan"),
        (Louder(TRAINING, {"dp": DPFedAvg()}), {}, "method dp: Louder may send more than FedAvg; expected FedAvg its"),
        (FedAvg(TRAINING, {"dp": Unclipped()}), {}, "method dp: Unclipped inherits its noise, which is accounted for"),
        (PRIVATE, dict(privacy=Privacy(1e-5, 5), name=None), "simulate: name is missing; expected one"),
        (PRIVATE, dict(participation=Participation(0.5, engine.Available(0.5))), "dp: sampler Available has no known"),
        (PRIVATE, dict(participation=Participation(0.6, clock=CLOCK)), f"method dp: cohort.clock.deadline: {FIXED}"),
        (FedAvg(TRAINING, {"dp": DPFedAvg(quantile=0.5)}), {}, "DPFedAvg: noise_multiplier 1 with quantile: "),
        (FedAvg(TRAINING, {"dp": DPFedAvg(bands=2)}), {}, "method dp: bands 2: a client may take part in one of"),
        (PRIVATE, dict(privacy=Privacy(1e-5)), "privacy: no population; expected the number of clients"),
        (PRIVATE, dict(privacy=Privacy(0.2, 5)), "privacy: delta 0.2: expected less than 1 / population, 0.2"),
        (PRIVATE, dict(privacy=Privacy(2.0, 5)), "privacy: delta 2 is outside (0, 1)"),
        (PRIVATE, dict(privacy=Privacy(1e-5, 2)), "privacy: population 2: the run has 5 clients, expected at least"),
        (FedAvg(TRAINING, {"dp": DPFedAvg(1.0, 0.0)}), dict(privacy=Privacy(1e-5, 9)), "noise_multiplier 0: there is"),
        (FedAvg(TRAINING), dict(privacy=Privacy(1e-5, 5)), "privacy: no method adds noise to the mean upload"),
        (beside(ditto=methods.Ditto(), moon=methods.MOON(), feddecorr=methods.FedDecorr()), {}, ""),
        (PRIVATE, dict(participation=dataclasses.replace(POISSON, dropout=0.1, upload_loss=0.1, clock=CLOCK)), ""),
        (PRIVATE, dict(on_nan="continue", stop_at_accuracy=0.5), ""),
    )  # fmt: skip
def test_what_breaks_the_guarantee(algorithm, options, message, federation, network, monkeypatch):
    """Before a round is traced."""
    options = dict(participation=POISSON if algorithm.methods else 1.0, name="run", should_stop=lambda: True) | options
    if not message:
        run_at_once(federation, network, algorithm, **options)
        return
    monkeypatch.setattr(engine, "trace", None)
    check(re.escape(message), run_at_once, federation, network, algorithm, **options)


@cases((1.0, 3.139), (1.9, 1.438))
def test_a_clip_that_follows_a_quantile_spends_what_is_printed(z, expected):
    """By the closed formula of two Gaussian releases (Balle and Wang, 2018), of what one more client sends.

    With bits of 0 or 1 the truth would be 4.452 and 3.191.
    """
    method, delta = DPFedAvg(clip=2.0, noise_multiplier=z, quantile=0.5, bit_noise=1.0), 1e-3

    class View:
        shared, memory = jnp.asarray(2.0), jnp.zeros(())

    @jax.jit
    def released(update, report, key):
        view = fc.NoiseView(View.shared, report, jnp.asarray(20.0), jnp.array(0), key)
        noisy, clip = method.perturb({"w": update}, view)
        return 20 * noisy["w"], 20 * jnp.log(clip / 2) / -0.2  # the sums, but for constants

    shifts = []
    for size in (0.5, 100.0):  # within the clip, and not
        sent, memory = method.upload({"w": jnp.full(4, size)}, View)
        own = jax.tree.map(jnp.subtract, *(released(update, report, jax.random.key(0)) for update, report in (
            (sent["w"] / 20, memory), (jnp.zeros(4), jnp.zeros(())))))  # fmt: skip
        shifts.append([float(jnp.linalg.norm(own[0])), abs(float(own[1]))])
    keys = jax.random.split(jax.random.key(1), 20_000)
    draws = jax.vmap(released, (None, None, 0))(jnp.zeros(4), jnp.zeros(()), keys)
    deviations = [float(np.std(draw)) for draw in draws]
    mu = max(math.hypot(*np.divide(own, deviations)) for own in shifts)

    def excess(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    everyone = FedAvg(methods={"dp": method}), Participation(1.0), 1, 20
    ((_, printed),) = guarantee.statement(Privacy(delta, 20), *everyone)[0].items()
    assert printed == pytest.approx(expected, abs=1e-3) and brentq(excess, 0, 20) == pytest.approx(printed, rel=0.03)


def test_running_statistics(federation, model):
    check(r"running statistics .* in the mean, .* or private='batch_norm'", PRIVATE.check, model)
    PRIVATE.replace(private="batch_norm").check(model)
    group = Model(nn.SmallCNN(4, channels=(6,), norm="group"), federation.input_shape)
    PRIVATE.check(group)


@cases(
    (POISSON, DPFedAvg(), 5, dict(sampling="poisson", cohort=3, places=None)),
    (Participation(0.6, engine.Poisson(4)), DPFedAvg(), 5, dict(sampling="poisson", cohort=3, places=4)),
    (POISSON, DPFedAvg(), 900, dict(sampling="poisson", cohort=3, places=12)),
    (POISSON, DPFedAvg(noise_cohort_size=30), 900, dict(sampling="poisson", cohort=30, places=58)),
    (Participation(0.6, engine.Poisson(4)), DPFedAvg(noise_cohort_size=30), 900, dict(cohort=30, places=40)),
    (Participation(0.2, engine.Poisson(1, 3)), DPFedAvg(bands=2), 9, dict(cohort=1, places=1, bands=3)),
    (Participation(0.6), DPFedAvg(), 5, dict(sampling="without_replacement", cohort=3, neighbours="replace")),
    (Participation(1.0), DPFedAvg(), 5, dict(sampling="none", cohort=5, neighbours="add_or_remove")),
    (Participation(1.0), DPFedAvg(), 50, dict(sampling="without_replacement", cohort=5)),
)
def test_what_is_accounted_for(rule, method, population, expected):
    found = guarantee.mechanism(Privacy(1e-5, population), FedAvg(methods={"dp": method}), rule, 7, 5)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.population, found.rounds) == (population, 7)
    assert guarantee.accountant_of(Privacy(1e-5), found) == ("rdp" if found.neighbours == "replace" else "pld")


def test_names_of_epsilon():
    run = FedAvg(methods={"dp": DPFedAvg(noise_multiplier=2.0)}), Participation(0.6), 3, 5
    (row, says) = guarantee.statement(Privacy(1e-3, 5), *run)
    assert row == {"epsilon/0.001": says["epsilon"]} and not says["as_if"]
    assert metric_of("epsilon/0.001").heading == "ε at δ = 0.001"
    for method, population, name in (
        (DPFedAvg(), 90, "epsilon_as_if/0.001, 3 of 90"),
        (DPFedAvg(noise_cohort_size=20), 90, "epsilon_as_if/0.001, 20 of 90"),
    ):
        row, says = guarantee.statement(Privacy(1e-3, population), FedAvg(methods={"dp": method}), *run[1:])
        assert [*row] == [name] and says["as_if"] and says["guarantee"].startswith("as if ")
    assert metric_of(name).heading == "ε at δ = 0.001 as if 20 of 90"
    assert guarantee.statement(None, *run)[1]["guarantee"].startswith("not accounted for")
    assert guarantee.statement(None, FedAvg(), *run[1:]) == ({}, {})


@cases(3.99928, 130.812, 0.0123411, 9.0, 2950.0001)
def test_what_is_printed_is_not_below_what_is_spent(found, monkeypatch):
    monkeypatch.setattr(guarantee.accounting, "epsilon", lambda *arguments: found)
    run = FedAvg(methods={"dp": DPFedAvg()}), Participation(0.6), 3, 5
    row, says = guarantee.statement(Privacy(1e-3, 5), *run)
    assert [*row.values()] == [says["epsilon"]] == [found]
    text = metric_of("epsilon/0.001").show(found)
    assert found <= float(text) <= found * 1.001
    assert says["guarantee"].startswith(f"({text}, 0.001)-differential privacy")


def test_rows_and_folder(federation, network, tmp_path):
    """Also of a run whose clients keep parts for themselves."""
    options = dict(participation=Participation(0.6), privacy=Privacy(1e-3, 5, accountant="rdp"), folder=tmp_path)
    algorithm = PRIVATE.replace(private="head")

    def run(rounds):
        result = simulate(federation, network, algorithm, rounds=rounds, key=jax.random.key(0), **options)
        return result, json.loads((tmp_path / "privacy.json").read_text())

    result, says = run(2)
    assert [row["epsilon/0.001"] for row in result.metrics] == [says["epsilon"]] * 2
    assert {"clients.npz", "partition.npz", "final.npz"} <= says["not_covered"].keys()
    assert says["mechanism"]["accountant"] == "rdp"
    assert run(1)[1] == says and run(3)[1]["epsilon"] > says["epsilon"]  # rounds that were done count


def test_an_upload_that_is_not_finite_is_noise(federation, network):
    """The run continues, with a model that is."""
    algorithm = FedAvg(TRAINING.replace(learning_rate=1e30), {"dp": DPFedAvg(0.1, 1e-3)})
    result = run_at_once(federation, network, algorithm, participation=POISSON, rounds=2, name="loud")
    assert result.rounds_done == 2 and not np.all(np.isfinite(result.clients["task_loss"]))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.variables))


def test_noise_is_of_the_run(federation, network, tmp_path):
    """Runs of other names, and of other options, have no noise in common; a folder that was moved keeps its own."""
    silent = TRAINING.replace(learning_rate=1e-12)  # what changes the model is noise

    def run(rounds=1, training=silent, key=0, **options):
        algorithm = FedAvg(training, {"dp": DPFedAvg(0.1, 1.0)})
        options = dict(participation=POISSON, variables=network.init(jax.random.key(5))) | options
        result = run_at_once(federation, network, algorithm, rounds, key=jax.random.key(key), **options)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.variables)])

    start, first = run(rounds=1, name="a", training=silent.replace(batch_size=4)), run(name="a")
    others = run(name="b"), run(name="a", key=1), run(name="a", training=silent.replace(learning_rate=2e-12)), start
    initial = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(network.init(jax.random.key(5)))])
    np.testing.assert_array_equal(run(name="a", measure_every=2), first)
    for other in others:
        assert abs(np.corrcoef(first - initial, other - initial)[0, 1]) < 0.15
    here, there = tmp_path / "here", tmp_path / "there"
    run(folder=here)
    assert json.loads((here / "run.json").read_text())["name"] == "here"
    here.rename(there)
    (there / "checkpoints").rename(tmp_path / "lost")  # it starts again
    moved = run(2, folder=there)
    np.testing.assert_array_equal(moved, run(2, folder=here))
    assert json.loads((there / "run.json").read_text())["name"] == "here"


def test_a_study(tmp_path, capsys):
    """Epsilon in place of the noise; its column in the table of arms of which one has no privacy."""
    config = write_config(
        tmp_path,
        "config.arms = dict(plain=dict(), private=dict(methods=dict(dp_fedavg=dict(clip=0.5)), "
        "privacy=dict(delta=1e-3, population=4, epsilon=9.0, accountant='rdp')))",
    )
    assert start(config, "--workdir", str(tmp_path / "study")) == 0
    lines = capsys.readouterr().out.splitlines()
    first = ("Arm", "plain", "priv")
    heading, plain, private = (next(line for line in lines if line.startswith(word)) for word in first)
    assert "ε at δ = 0.001" in heading and (plain.split()[1], private.split()[1]) == ("-", "8.999")
    says = json.loads((tmp_path / "study" / "private" / "seed0" / "privacy.json").read_text())
    assert json.loads((tmp_path / "study" / "private" / "seed0" / "run.json").read_text())["name"] == "private seed 0"
    assert 8.99 < says["epsilon"] <= 9 and not (tmp_path / "study" / "plain" / "seed0" / "privacy.json").exists()
    summary = json.loads((tmp_path / "study" / "summary.json").read_text())
    assert summary["private"]["epsilon/0.001"]["mean"] == says["epsilon"]


@cases("delta=1e-3", "delta=1e-3, population=9_999", "epsilon=1.0, delta=1e-3")
def test_all_arms_are_validated_first(privacy, tmp_path, capsys, monkeypatch):
    """One line, before a round of any arm is traced."""
    monkeypatch.setattr("experiments.study.groups.prepare", None)
    config = write_config(
        tmp_path,
        f"config.arms = dict(plain=dict(), private=dict(methods=dict(dp_fedavg=dict()), privacy=dict({privacy})))",
    )
    assert start(config, "--workdir", str(tmp_path / "study")) == 2
    error_of(capsys, "error: arm private: privacy: ")
    assert not (tmp_path / "study").exists()


@cases(
    (dict(epsilon=1.0, delta=1e-5), "privacy: no population"),
    (dict(epsilon=1.0, delta=1e-5, population=9, z=1), "unknown option of privacy 'z'"),
    (dict(epsilon=1.0, population=9), "privacy.delta is missing"),
    (dict(epsilon=-1.0, delta=1e-5, population=20), "privacy.epsilon -1 is not positive"),
)
def test_wrong_configs(changes, message):
    config = plain(base.get_config()) | dict(privacy=changes, methods=dict(dp_fedavg=dict()))
    with pytest.raises(UserError) as error:
        build.algorithm(config)
    assert message in str(error.value)
    config |= dict(privacy=dict(epsilon=1.0, delta=1e-5, population=20), methods={})
    check(r"privacy.epsilon: no method adds noise", build.algorithm, config)
    config |= dict(methods=dict(dp_fedavg=dict(noise_multiplier=1.0)))
    check(r"privacy.epsilon and methods.dp_fedavg.noise_multiplier: .* give one", build.algorithm, config)
