"""Methods whose clients use models of their own: values by hand, and two rounds of PFLlib's own classes.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

import pytest
from personal_case import TRAINING, V1, V2, A, B, batches, close, federation, in_order, matrices, of_client, run, system
from personal_case import variables as of

from fedjax_collapse import FedAvg
from fedjax_collapse.methods import Ditto, FedPer
from fedjax_collapse.training.local import train, views

__all__ = ["in_order"]
pytestmark = pytest.mark.usefixtures("in_order")


def test_ditto_pulls_its_own_model_to_the_received_one():
    algorithm, own = FedAvg(TRAINING, {"ditto": Ditto(0.5)}), of(V1, V2)
    stacked = {"ditto": own._replace(params={k: {"kernel": v["kernel"][None]} for k, v in own.params.items()})}
    one = matrices(of_client(run(algorithm, federation(A), memory=stacked).clients.memory["ditto"]))
    close(one[0], [[1.122934, -0.920666], [0.572648, 2.095709]])
    close(one[1], [[0.835225, -0.178079], [-0.195624, 0.770019], [-1.209601, 0.838060]])
    two = matrices(of_client(run(algorithm, federation(batches(A, B)), memory=stacked).clients.memory["ditto"]))
    close(two[0], [[1.139909, -0.904051], [0.568149, 2.092318]])


def test_nothing_is_summed_in_the_training_of_an_own_model(monkeypatch):
    """Its metrics are not read, and the squared distance of every step would take longer than the step's update."""
    trained = []
    monkeypatch.setattr(views, "train", lambda context: trained.append(train(context)) or trained[-1])
    run(FedAvg(TRAINING, {"ditto": Ditto(0.5, epochs=1)}), federation(A))
    assert trained and all(result.metrics == {} for result in trained)


def test_two_rounds_of_federated_averaging_fedper_and_ditto():
    averaged = [[0.99585, -0.94915], [0.50028, 1.976]], [[0.97442, 0.04417], [-0.00544, 1.0125], [-0.96898, 0.94333]]
    for algorithm in (FedAvg(TRAINING), FedAvg(TRAINING, {"ditto": Ditto(0.5)})):
        state = run(algorithm, system(), 2)
        for found, expected in zip(matrices(state.server.variables), averaged, strict=True):
            close(found, expected, 1e-5)
    own = matrices(of_client(state.clients.memory["ditto"]))[0]
    close(own, [[0.93577, -0.96214], [0.54341, 1.98948]], 1e-5)
    state = run(FedAvg(TRAINING, {"fedper": FedPer()}), system(), 2)
    close(matrices(state.server.variables)[0], [[0.99577, -0.9502], [0.50212, 1.97769]], 1e-5)
    head = [[0.94158, -0.00515], [0.00916, 1.05813], [-0.95074, 0.94702]]
    close(state.clients.private["params/head/kernel"][0].T, head, 1e-5)
