"""FedProto and FedALA: values by hand, and two rounds of PFLlib's own classes.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line
from personal_case import TRAINING, W1, A, B, TwoLayers, batches, close, federation, matrices, of_client, run, system
from personal_case import variables as of

from fedjax_collapse import FedAvg, Model, engine
from fedjax_collapse.core.records import Outputs
from fedjax_collapse.methods import FedALA, FedProto
from fedjax_collapse.methods._prototypes import Prototypes
from fedjax_collapse.methods.personal.fedala import Mixing
from fedjax_collapse.run.own_tests import by_stage, personal_model

pytestmark = pytest.mark.usefixtures("in_order")


def proto(**options):
    return FedAvg(TRAINING, {"fedproto": FedProto(**options)})


def own_body(state, client=0):
    return np.asarray(state.clients.private["params/body/kernel"][client]).T


def known() -> Prototypes:
    """Of the classes 0 and 2."""
    return Prototypes(jnp.array([[2.0, 0], [7, 7], [0, 1]]), jnp.array([True, False, True]))


def test_fedproto_predicts_the_nearest_prototype():
    outputs = Outputs(jnp.array([[1.5, 0.2], [0.1, 0.4], [7, 7]]), jnp.array([[0.0, 1, 0]] * 3))
    view = SimpleNamespace(shared=known(), class_counts=jnp.array([0, 2, 1]))
    logits = FedProto().predict(outputs, view)
    assert jnp.argmax(logits, axis=1).tolist() == [0, 2, 0] and jnp.isfinite(logits).all()
    close(logits[0, [0, 2]], [-0.29, -2.89])
    assert (jnp.exp(jax.nn.log_softmax(logits))[:, 1] == 0).all()
    assert jnp.argmax(FedProto(prediction="own").predict(outputs, view), axis=1).tolist() == [2, 2, 2]
    assert FedProto(prediction="head").predict(outputs, view) is outputs.logits
    view.class_counts = jnp.array([0, 2, 0])  # of a class without prototype
    np.testing.assert_array_equal(FedProto(prediction="own").predict(outputs, view), outputs.logits)
    before = SimpleNamespace(shared=known()._replace(valid=jnp.zeros(3, bool)), class_counts=None)
    np.testing.assert_array_equal(FedProto().predict(outputs, before), outputs.logits)


def test_two_rounds_of_fedproto():
    state = run(proto(average="clients", collected="all_epochs"), system(), 2)
    means, valid = state.server.shared["fedproto"]
    close(means, [[-0.06992, -1.07967], [-0.36, 1.10203], [-0.60827, 0.4984]], 1e-5)
    assert valid.all()
    close(own_body(state), [[0.82021, -0.92703], [0.51001, 1.89517]], 1e-5)


def test_own_tests_of_fedproto_are_of_the_nearest_prototypes():
    data, model, algorithm = system(), Model(TwoLayers(3), (1, 1, 2)), proto(prediction="own")
    data = data.with_tests(data.owned_rows())
    state = run(algorithm, data, 2)
    arguments = algorithm, model, state.server, state.clients, data, data.tests, None, jax.random.key(0), 2
    found = by_stage(*arguments)["received"]
    means = state.server.shared["fedproto"].means
    for client, rows in enumerate(data.owned_rows()):
        labels = np.asarray(data.test.labels)[rows]
        features = np.asarray(data.test.inputs)[rows].reshape(-1, 2) @ own_body(state, client).T
        classes = np.unique(labels)
        distances = ((features[:, None] - means[classes]) ** 2).sum(2)
        assert found.score[client] == (classes[distances.argmin(1)] == labels).sum()
        of_label = distances[np.arange(len(rows)), np.searchsorted(classes, labels)]
        close(found.loss[client], (of_label + np.log(np.exp(-distances).sum(1))).mean())


LAST, RECEIVED = [[0.8, 0.2], [0, 0.6], [-1.2, 0.8]], [[0.7, 0.3], [0.6, 1], [-0.7, 1.3]]


@pytest.mark.parametrize(
    ("rate", "weights", "has_settled"),
    [
        (1.0, [[0.930949, 0.981132], [0.680749, 1], [0.920790, 0.587079]], True),
        (10.0, [[0.556461, 0.880070], [0, 1], [0.224609, 0]], False),
    ],
)
def test_fedala_learns_weights_of_the_received_head(rate, weights, has_settled):
    """In one epoch, of a later round or because there is no second one."""
    data, limit = federation(batches(A, B)), {} if has_settled else dict(max_epochs=1)
    algorithm = FedAvg(TRAINING, {"fedala": FedALA(rate=rate, share=1.0, **limit)})
    own = {"head/kernel": jnp.array([LAST]).mT}
    stored = Mixing({"head/kernel": jnp.ones((1, 2, 3))}, own, jnp.array([has_settled]))
    state = run(algorithm, data, start=of(W1, RECEIVED), memory={"fedala": stored})
    mixing = of_client(state.clients.memory["fedala"])
    close(mixing.weights["head/kernel"].T, weights)
    model = Model(TwoLayers(3), (1, 1, 2))
    start = engine.init(algorithm, model, of(W1, RECEIVED), 1, jax.random.key(0))
    clients = start.clients._replace(memory={"fedala": stored})
    body, head = matrices(
        personal_model(model, algorithm, start.server, clients, data.train, data.ownership, start.key, 0, 0)
    )
    close(body, W1, 0)
    close(head, np.add(LAST, np.subtract(RECEIVED, LAST) * weights))


def test_two_rounds_of_fedala():
    algorithm = FedAvg(TRAINING, {"fedala": FedALA(threshold=0.1, share=1.0)})
    one, two = (run(algorithm, system(), rounds) for rounds in (1, 2))
    first, second = (state.clients.memory["fedala"] for state in (one, two))
    assert (first.weights["head/kernel"] == 1).all() and not first.has_settled.any()  # nothing to mix
    weights = [[0.94638, 0.98674], [0.99627, 0.91462], [0.97335, 0.99971]]
    close(second.weights["head/kernel"][0].T, weights, 1e-5)
    assert second.has_settled.all()
    close(matrices(two.server.variables)[0], [[0.9956, -0.94949], [0.50077, 1.9765]], 1e-5)


def test_the_next_round_of_fedala_starts_from_what_own_tests_score():
    """With a window of half of the examples; in the third round nothing is trained."""
    training = TRAINING.replace(schedule=jax.tree_util.Partial(lambda round: jnp.where(round < 2, 1.0, 0.0)))
    algorithm, data, model = FedAvg(training, {"fedala": FedALA(share=0.5)}), system(), Model(TwoLayers(3), (1, 1, 2))
    two, three = run(algorithm, data, 2), run(algorithm, data, 3)
    key = engine.init(algorithm, model, of(), 3, jax.random.key(0)).key
    for client in range(3):
        used = personal_model(model, algorithm, two.server, two.clients, data.train, data.ownership, key, 2, client)
        body, head = matrices(used)
        last = of_client(three.clients.memory["fedala"].last["head/kernel"], client).T
        close(head, last, 1e-12)
        close(body, matrices(two.server.variables)[0], 0)
        assert np.abs(head - matrices(two.server.variables)[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FedALA("Dense_1"), {}, "method it: network TwoLayers: part Dense_1: the network has no such layer"),
        (FedALA(), dict(private="head"), "FedALA: part 'head' has no params that the server changes"),
        (FedALA("none"), {}, "FedALA: part 'none' has no params"),
        (FedALA(), dict(training=TRAINING.replace(freeze="head")), "FedALA: part 'head' has no params"),
    ],
)
def test_what_fedala_cannot_mix_is_rejected(method, options, message):
    with one_line(f"^{message}"):
        FedAvg(methods={"it": method}, **options).check(Model(TwoLayers(3), (1, 1, 2)))
