"""pFedMe: two rounds of PFLlib's own classes, and parts that are frozen."""

import numpy as np
import pytest
from personal_case import TRAINING, A, B, batches, close, federation, in_order, matrices, of_client, run, system

from fedjax_collapse import FedAvg
from fedjax_collapse.methods import PFedMe

__all__ = ["in_order"]
pytestmark = pytest.mark.usefixtures("in_order")
SLOW = TRAINING.replace(learning_rate=0.05)
MOREAU = dict(strength=2.0, inner_steps=2, inner_rate=0.1)


def pfedme(data, rounds=1, training=SLOW, **options):
    return run(FedAvg(training, {"pfedme": PFedMe(**MOREAU, **options)}), data, rounds)


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
