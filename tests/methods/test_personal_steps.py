"""pFedMe: values by hand, and two rounds of PFLlib's own classes."""

import numpy as np
import pytest
from personal_case import TRAINING, A, B, batches, close, federation, in_order, matrices, of_client, run, system

from fedjax_collapse import FedAvg
from fedjax_collapse.methods import FedDecorr, PFedMe

__all__ = ["in_order"]
pytestmark = pytest.mark.usefixtures("in_order")
SLOW = TRAINING.replace(learning_rate=0.05)
MOREAU = dict(strength=2.0, inner_steps=2, inner_rate=0.1)


def pfedme(data, rounds=1, training=SLOW, beside=None, **options):
    return run(FedAvg(training, {"pfedme": PFedMe(**MOREAU, **options), **(beside or {})}), data, rounds)


def test_pfedme_s_own_model_is_a_proximal_point():
    theta = of_client(pfedme(federation(A)).clients.memory["pfedme"])
    close(matrices(theta)[0], [[1.050737, -1.025005], [0.461102, 2.001865]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(), [[1.012202, -1.000135], [0.493931, 2.000715]]),
        (dict(reset=True), [[1.008975, -0.999091], [0.496382, 2.000937]]),
        (dict(inner_decay=0.001), [[1.012153, -1.000090], [0.493909, 2.000623]]),
    ],
)
def test_pfedme_s_server_follows_the_proximal_points(options, expected):
    """In one client, after two batches."""
    data = federation(batches(A, B))
    close(matrices(pfedme(data, **options).server.variables)[0], expected)
    start = np.array([[1.0, -1.0], [0.5, 2.0]])
    for beta in (0.0, 2.0):
        far = matrices(pfedme(data, beta=beta, **options).server.variables)[0]
        close(far - start, beta * (np.array(expected) - start), beta * 1e-5)


def test_two_rounds_of_pfedme():
    found = matrices(pfedme(system(), 2, inner_decay=0.001).server.variables)
    close(found[0], [[1.00384, -0.98577], [0.49857, 1.99491]], 1e-5)


def test_pfedme_trains_no_frozen_part():
    """Whatever its weight decay; nor is it stored for each client."""
    frozen = SLOW.replace(freeze="head")
    state = pfedme(federation(batches(A, B)), training=frozen, inner_decay=0.5)
    body, head = matrices(state.server.variables)
    assert np.array_equal(head, [[1, 0], [0, 1], [-1, 1]]) and np.abs(body[0] - [1, -1]).max() > 1e-3
    body, head = matrices(of_client(state.clients.memory["pfedme"]))
    assert head.tolist() is None and np.abs(body[0] - [1, -1]).max() > 1e-3


@pytest.mark.parametrize("method", [PFedMe(**MOREAU)], ids=lambda method: type(method).__name__)
def test_terms_of_regularizers_are_trained_on(method):
    data, training = federation(batches(A, B)), SLOW.replace(batch_size=4)
    one, two = (run(FedAvg(training, {"it": method, **beside}), data) for beside in ({}, {"feddecorr": FedDecorr(0.5)}))
    assert np.abs(matrices(one.server.variables)[0] - matrices(two.server.variables)[0]).max() > 1e-4
