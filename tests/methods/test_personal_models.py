"""Methods whose clients use models of their own: two rounds of PFLlib's own classes, and regularizers next to them.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

import jax
import numpy as np
import pytest
from personal_case import TRAINING, A, B, TwoLayers, batches, close, federation, matrices, of_client, run, system

from fedjax_collapse import FedAvg, Model, methods
from fedjax_collapse.nn.heads import Shifted, TwoHeads
from fedjax_collapse.training.local import train, views

pytestmark = pytest.mark.usefixtures("in_order")


def test_nothing_is_summed_in_the_training_of_an_own_model(monkeypatch):
    """Its metrics are not read, and the squared distance of every step would take longer than the step's update."""
    trained = []
    monkeypatch.setattr(views, "train", lambda context: trained.append(train(context)) or trained[-1])
    run(FedAvg(TRAINING, {"ditto": methods.Ditto(0.5, epochs=1)}), federation(A))
    assert trained and all(result.metrics == {} for result in trained)


def test_two_rounds_of_federated_averaging_fedper_and_ditto():
    state = run(FedAvg(TRAINING, {"ditto": methods.Ditto(0.5)}), system(), 2)  # whose server averages as without
    averaged = [[0.99585, -0.94915], [0.50028, 1.976]], [[0.97442, 0.04417], [-0.00544, 1.0125], [-0.96898, 0.94333]]
    for found, expected in zip(matrices(state.server.variables), averaged, strict=True):
        close(found, expected, 1e-5)
    own = matrices(of_client(state.clients.memory["ditto"]))[0]
    close(own, [[0.93577, -0.96214], [0.54341, 1.98948]], 1e-5)
    state = run(FedAvg(TRAINING, {"fedper": methods.FedPer()}), system(), 2)
    close(matrices(state.server.variables)[0], [[0.99577, -0.9502], [0.50212, 1.97769]], 1e-5)
    head = [[0.94158, -0.00515], [0.00916, 1.05813], [-0.95074, 0.94702]]
    close(state.clients.private["params/head/kernel"][0].T, head, 1e-5)


PLAIN = {  # methods on the network's own head, by what a regularizer has to move
    "server": (methods.PerFedAvg(0.1), methods.PFedMe(), methods.FedALA()),
    "private": (methods.FedAMP(), methods.FedPAC(), methods.FedFomo(validation=0.25), methods.FedProto()),
    "memory": (methods.APFL(),),
}
CASES = [(place, method, None) for place, own in PLAIN.items() for method in own]
CASES += [
    ("server", methods.FedBABU(), Shifted),
    ("server", methods.FedRoD(), TwoHeads),
    ("server", methods.FedDBE(), Shifted),
]


@pytest.mark.parametrize(("place", "method", "head"), CASES, ids=lambda value: type(value).__name__)
def test_regularizers_change_what_clients_train(place, method, head):
    def bodies(strength):
        algorithm = FedAvg(TRAINING.replace(batch_size=4), {"it": method, "decorr": methods.FedDecorr(strength)})
        start = Model(TwoLayers(3, head), (1, 1, 2)).init(jax.random.key(0))
        state = run(algorithm, system(), 2, start, head)
        found = dict(server=state.server.variables, private=state.clients.private, memory=state.clients.memory["it"])
        return jax.tree.leaves(found[place])

    pairs = zip(bodies(0.0), bodies(1.0), strict=True)
    assert max(np.abs(plain - changed).max() for plain, changed in pairs) > 1e-4


SLOW = TRAINING.replace(learning_rate=0.05)
MOREAU = dict(strength=2.0, inner_steps=2, inner_rate=0.1)


def pfedme(data, rounds=1, training=SLOW, **options):
    return run(FedAvg(training, {"pfedme": methods.PFedMe(**MOREAU, **options)}), data, rounds)


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
