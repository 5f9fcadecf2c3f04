"""Metrics of the epochs within a client's round: what they are of, and that logging them changes nothing else."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, cases, run_at_once

from fedjax_collapse import FedAvg, FedDecorr, FedRep, LocalTraining, Participation, engine
from fedjax_collapse.core.records import EPOCH, of_rounds
from fedjax_collapse.results import of_runs, plot

TRAINING = LocalTraining(epochs=3, batch_size=8, learning_rate=0.05, momentum=0.9, logged_epochs=3)
DECORR = {"feddecorr": FedDecorr()}


def run(federation, network, training, methods=DECORR, **options):
    return run_at_once(federation, network, FedAvg(training, methods), **options)


def test_their_means_are_those_of_shorter_rounds(float64, federation, network):
    """A round of e epochs is the start of a longer one."""
    apart = run(federation, network, TRAINING).clients
    for name in ("task_loss", "accuracy", "feddecorr/correlation"):
        of_epochs = [apart[f"{EPOCH}{number}/{name}"] for number in (1, 2, 3)]
        for epochs in (1, 2, 3):
            shorter = run(federation, network, TRAINING.replace(epochs=epochs, logged_epochs=0)).clients
            assert_close(np.mean(of_epochs[:epochs], axis=0), shorter[name], 1e-13)
    assert not np.allclose(of_epochs[0], of_epochs[1], rtol=1e-3, atol=0)


@pytest.mark.slow
def test_part_of_an_epoch(float64, federation, network):
    """Half of the third epoch's steps: the mean is of the examples seen in them."""
    part = run(federation, network, TRAINING.replace(epochs=2.5)).clients
    whole = run(federation, network, TRAINING.replace(epochs=2)).clients
    for number in (1, 2):
        assert_same_bits(part[f"{EPOCH}{number}/task_loss"], whole[f"{EPOCH}{number}/task_loss"])
    sizes = np.asarray(federation.ownership.sizes)
    seen = np.minimum(sizes, 8 * np.ceil(np.ceil(sizes / 8) / 2))
    total = part["task_loss"] * (2 * sizes + seen)
    before = whole["task_loss"] * 2 * sizes
    assert_close(part[f"{EPOCH}3/task_loss"], (total - before) / seen, 1e-12)
    assert np.isnan(whole[f"{EPOCH}3/task_loss"]).all()


@pytest.mark.slow
def test_epochs_go_on_over_phases(federation, network):
    """FedRep's first epochs are those of the head, the later ones of the body."""
    methods = {"fedrep": FedRep(head_epochs=2)}
    both = run(federation, network, TRAINING.replace(epochs=1, logged_epochs=3), methods).clients
    losses = [both[f"{EPOCH}{number}/task_loss"] for number in (1, 2, 3)]
    assert np.isfinite(losses).all()
    assert_close(np.mean(losses, axis=0), both["task_loss"], 1e-5)


LAYOUTS = {
    "chunked": dict(client_map=engine.Chunked(2)),
    "sharded": dict(client_map=engine.Sharded(2, engine.Chunked(1))),
    "host": dict(storage="host"),
}


@pytest.mark.slow
@cases(("chunked", "stop"), ("sharded", "skip_client"), ("host", "skip_client"))
def test_logging_changes_nothing_else(layout, on_nan, federation, network):
    """Nor does an epoch that nobody takes count as a loss that is not finite."""
    options = dict(rounds=2, participation=Participation(0.6), on_nan=on_nan, **LAYOUTS[layout])
    logged = run(federation, network, TRAINING.replace(logged_epochs=4), **options)
    plain = run(federation, network, TRAINING.replace(logged_epochs=0), **options)
    assert_same_bits(logged.state.server, plain.state.server)
    assert logged.metrics == plain.metrics
    assert_same_bits(of_rounds(logged.clients), plain.clients)
    in_cohort = logged.clients["steps"] > 0
    assert not in_cohort.all()
    for number in (1, 2, 3):
        np.testing.assert_array_equal(np.isfinite(logged.clients[f"{EPOCH}{number}/task_loss"]), in_cohort)
    assert np.isnan(logged.clients[f"{EPOCH}4/task_loss"]).all()


def study_of(clients):
    """Results of one run of each arm, with these arrays of clients."""
    runs = {
        arm: SimpleNamespace(clients=of, timing=(), headline="", metrics=[{"round": 2}]) for arm, of in clients.items()
    }
    for run in runs.values():
        run.spectra = run.measurements = run.own_tests = {}
    return of_runs(runs)


def test_they_are_drawn():
    """Of the last round, a panel for every arm that has them and each of its losses."""
    clients = {"round": np.array([1, 2])}
    clients |= {f"{EPOCH}{e}/{name}": np.full((2, 3), np.nan) for e in (1, 2, 3) for name in ("task_loss", "accuracy")}
    plain = {name: np.copy(values) for name, values in clients.items()}
    for epoch, value in ((1, 4.0), (2, 2.0)):
        plain[f"{EPOCH}{epoch}/task_loss"][1, :2] = [value, value + 1]
    decorr = plain | {f"{EPOCH}{e}/feddecorr/correlation": plain[f"{EPOCH}{e}/task_loss"] / 2 for e in (1, 2, 3)}
    study = study_of({"plain": plain, "decorr": decorr, "without": {"round": np.array([1])}})
    panels = [axes for axes in plot.within_round(study).axes if axes.axison]
    assert [axes.get_ylabel() for axes in panels] == ["cross-entropy (nats)", "", "feddecorr/correlation"]
    *of_clients, mean = panels[2].get_lines()
    np.testing.assert_array_equal(mean.get_ydata(), [2.25, 1.25])
    assert len(of_clients) == 2  # the third was not in the cohort
    frame = plot.within_round.select(study)
    assert len(frame) == 4 + 8 and list(frame.iloc[0]) == ["plain", 2, "task_loss", 0, 1, 4.0]
    many = study_of({f"{i}": decorr if i == 6 else plain for i in range(7)})  # the last is not drawn, nor its loss
    panels = plot.within_round(many).axes
    assert len(panels) == 6 and all(axes.axison for axes in panels)
    assert plot.within_round(study_of({"without": {"round": np.array([1])}})) is None
