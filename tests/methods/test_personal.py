"""Personal methods: two rounds of PFLlib's own classes, values by hand, own tests, and regularizers next to them.

A network has two 2-D layers, and clients have a few rows in a fixed order, for which PFLlib's classes were run.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check
from engine_rounds import start_rounds
from flax import linen
from reference.personal_dispatch import combination

from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, methods
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import TRAINED, Outputs, Variables
from fedjax_collapse.methods import APFL, FedALA, FedAMP, FedBABU, FedDBE, FedPAC, FedProto, FedRoD, PerFedAvg
from fedjax_collapse.methods._prototypes import Prototypes
from fedjax_collapse.methods.personal.apfl import Own
from fedjax_collapse.methods.personal.fedala import Mixing
from fedjax_collapse.methods.personal.per_fedavg import divided
from fedjax_collapse.nn.heads import Shifted, TwoHeads
from fedjax_collapse.nn.layers import Dense
from fedjax_collapse.optim.combination import smallest_combination
from fedjax_collapse.run.own_tests import by_stage, personal_model
from fedjax_collapse.schema.options import with_options
from fedjax_collapse.training.local import train, views

pytestmark = pytest.mark.usefixtures("in_order")

W1, W2 = [[1.0, -1.0], [0.5, 2.0]], [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]  # as in PyTorch, [outputs, inputs]
V1, V2 = np.add(W1, 0.1), np.subtract(W2, 0.2)  # a client's own model
TRAINING = LocalTraining(epochs=1, batch_size=2, learning_rate=0.1)
A, B = ([(1.0, 0.0), (0.0, 1.0)], [0, 2]), ([(1.0, 1.0), (2.0, -1.0)], [1, 0])  # batches


class TwoLayers(linen.Module):
    """``logits = W2 W1 x``, or another head on W1 x."""

    num_classes: int
    head: Any = None

    @linen.compact
    def __call__(self, inputs, mask, train):
        features = Dense(2, use_bias=False, name="body")(inputs.reshape(len(inputs), 2))
        head = self.head or (lambda classes, name: Dense(classes, use_bias=False, name=name))
        return Outputs(features, head(self.num_classes, name="head")(features))


def federation(*clients) -> Federation:
    """Clients with (inputs, labels) each; they are also the test set."""
    inputs = np.concatenate([np.reshape(x, (-1, 1, 1, 2)) for x, _ in clients])
    labels = np.concatenate([y for _, y in clients])
    parts = np.split(np.arange(len(labels)), np.cumsum([len(y) for _, y in clients])[:-1])
    return Federation.from_arrays(inputs, labels, parts, inputs, labels, 0.0, 1.0)


def batches(*of_client) -> tuple:
    """One client's batches, as the rows of a federation."""
    return tuple(np.concatenate(parts) for parts in zip(*of_client, strict=True))


def system() -> Federation:
    """Three clients with 4, 2 and 4 rows, of section "system case"."""

    def rows(k, count):
        x = [(round(np.cos(k + i), 4), round(np.sin(2 * k + i), 4)) for i in range(count)]
        return x, [(k + i) % 3 for i in range(count)]

    return federation(*(rows(k, count) for k, count in enumerate((4, 2, 4))))


def variables(one=W1, two=W2, **head) -> Variables:
    """Of the network, from matrices as in PyTorch; ``head``: other params of the head than its kernel."""
    one, two = jnp.asarray(one, float).T, jnp.asarray(two, float).T
    return Variables({"body": {"kernel": one}, "head": {"kernel": two, **head}}, {})


def matrices(found: Variables) -> tuple[np.ndarray, np.ndarray]:
    """The two matrices, as in PyTorch."""
    return np.asarray(found.params["body"]["kernel"]).T, np.asarray(found.params["head"]["kernel"]).T


def run(algorithm, federation, rounds=1, start=None, head=None, memory=None):
    """The state after rounds of all clients, one after another; ``memory``, stacked, replaces that at the start."""
    model = Model(TwoLayers(3, head), (1, 1, 2))
    algorithm.check(model)
    start = jax.tree.map(jnp.array, start or variables())  # a copy, as the rounds donate it
    given = start_rounds(federation, model, algorithm, engine.Chunked(1), max_rounds=3, variables=start)
    static, algorithm, state, *data = given
    clients = state.clients._replace(memory={**state.clients.memory, **(memory or {})})
    state = engine.run_rounds(static, algorithm, state._replace(clients=clients), *data, rounds).state
    return jax.device_get(state._replace(key=None))


def of_client(stacked, client=0):
    """One client's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[client], stacked)


def close(found, expected, tolerance=6e-6):
    """Within half of the last digit that is known."""
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


OUTER = TRAINING.replace(learning_rate=0.05, batch_size=4)
MODEL = Model(TwoLayers(3), (1, 1, 2))
COPIED = with_options(TwoHeads, use_bias=False, copied=True)
SHIFTED = with_options(Shifted, use_bias=False)
SOLVE = jax.jit(smallest_combination)


def algorithm_of(training=TRAINING, **chosen):
    return FedAvg(training, chosen)


def rounds_of(method, **options):
    """The state after two rounds of the three clients."""
    return run(FedAvg(TRAINING, {"it": method}), system(), 2, **options)


def copied():
    return variables(personal={"kernel": jnp.asarray(W2).T})


def used_by(algorithm, state, data, key, round=0, client=0):
    """Body and head of the model that the client uses before a round."""
    of_all = data.train, data.ownership, key, round, client
    return matrices(personal_model(MODEL, algorithm, state.server, state.clients, *of_all))


def assert_own_losses(algorithm, logits_of, start=None, head=None):
    """After two rounds the clients' losses on their own tests, by stage, are those of the logits.

    ``logits_of``: of the state, the client and its inputs, by stage.
    """
    data = system()
    data = data.with_tests(data.owned_rows())
    state, model = run(algorithm, data, 2, start, head), Model(TwoLayers(3, head), (1, 1, 2))
    found = by_stage(algorithm, model, state.server, state.clients, data, data.tests, None, jax.random.key(0), 2)
    for client, rows in enumerate(data.owned_rows()):
        inputs, labels = np.asarray(data.test.inputs)[rows].reshape(-1, 2), np.asarray(data.test.labels)[rows]
        for stage, logits in logits_of(state, client, inputs).items():
            losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), labels]
            close(found[stage].loss[client], losses.mean(), 1e-9)


def test_two_rounds_of_federated_averaging_fedper_and_ditto():
    state = rounds_of(methods.Ditto(0.5))  # whose server averages as without
    averaged = [[0.99585, -0.94915], [0.50028, 1.976]], [[0.97442, 0.04417], [-0.00544, 1.0125], [-0.96898, 0.94333]]
    for found, expected in zip(matrices(state.server.variables), averaged, strict=True):
        close(found, expected, 1e-5)
    own = matrices(of_client(state.clients.memory["it"]))[0]
    close(own, [[0.93577, -0.96214], [0.54341, 1.98948]], 1e-5)
    state = rounds_of(methods.FedPer())
    close(matrices(state.server.variables)[0], [[0.99577, -0.9502], [0.50212, 1.97769]], 1e-5)
    head = [[0.94158, -0.00515], [0.00916, 1.05813], [-0.95074, 0.94702]]
    close(state.clients.private["params/head/kernel"][0].T, head, 1e-5)


def test_ditto_sums_nothing_in_the_training_of_the_own_model(monkeypatch):
    """Its metrics are not read, and the squared distance of every step would take longer than the step's update."""
    trained = []
    monkeypatch.setattr(views, "train", lambda context: trained.append(train(context)) or trained[-1])
    run(algorithm_of(ditto=methods.Ditto(0.5, epochs=1)), federation(A))
    assert trained and all(result.metrics == {} for result in trained)


PLAIN = {  # methods on the network's own head, by what a regularizer has to move
    "server": (PerFedAvg(0.1), methods.PFedMe(), FedALA()),
    "private": (FedAMP(), FedPAC(), methods.FedFomo(validation=0.25), FedProto()),
    "memory": (APFL(),),
}
CASES = [(place, method, None) for place, own in PLAIN.items() for method in own]
CASES += [("server", FedBABU(), Shifted), ("server", FedRoD(), TwoHeads), ("server", FedDBE(), Shifted)]


@pytest.mark.parametrize(("place", "method", "head"), CASES, ids=lambda value: type(value).__name__)
def test_regularizers_change_what_clients_train(place, method, head):
    def bodies(strength):
        algorithm = algorithm_of(TRAINING.replace(batch_size=4), it=method, decorr=methods.FedDecorr(strength))
        start = Model(TwoLayers(3, head), (1, 1, 2)).init(jax.random.key(0))
        state = run(algorithm, system(), 2, start, head)
        found = dict(server=state.server.variables, private=state.clients.private, memory=state.clients.memory["it"])
        return jax.tree.leaves(found[place])

    pairs = zip(bodies(0.0), bodies(1.0), strict=True)
    assert max(np.abs(plain - changed).max() for plain, changed in pairs) > 1e-4


MOREAU = dict(strength=2.0, inner_steps=2, inner_rate=0.1)
SLOW = TRAINING.replace(learning_rate=0.05)


def test_two_rounds_of_pfedme():
    state = run(algorithm_of(SLOW, it=methods.PFedMe(**MOREAU, inner_decay=0.001)), system(), 2)
    close(matrices(state.server.variables)[0], [[1.00384, -0.98577], [0.49857, 1.99491]], 1e-5)


def test_pfedme_trains_no_frozen_part():
    """Whatever its weight decay; nor is it stored for each client."""
    algorithm = algorithm_of(SLOW.replace(freeze="head"), it=methods.PFedMe(**MOREAU, inner_decay=0.5))
    state = run(algorithm, federation(batches(A, B)))
    body, head = matrices(state.server.variables)
    assert np.array_equal(head, [[1, 0], [0, 1], [-1, 1]]) and np.abs(body[0] - [1, -1]).max() > 1e-3
    body, head = matrices(of_client(state.clients.memory["it"]))
    assert head.tolist() is None and np.abs(body[0] - [1, -1]).max() > 1e-3


def test_per_fedavg_with_the_hessian_at_the_adapted_model():
    """The other orders and Hessians are in ``test_round_reference.py``."""
    algorithm = algorithm_of(OUTER, it=PerFedAvg(0.1, order="hf", hessian="adapting"))
    body, _ = matrices(run(algorithm, federation(batches(A, B))).server.variables)
    close(body, [[1.012453, -0.989981], [0.499140, 1.999766]])


def test_a_client_of_per_fedavg_adapts_by_plain_steps_on_its_own_data():
    """Whatever the options of local training."""

    def personal(method, data, training):
        algorithm = algorithm_of(training, per_fedavg=method)
        state = engine.init(algorithm, MODEL, variables(), 1, jax.random.key(0))
        return used_by(algorithm, state, data, state.key)

    training = OUTER.replace(momentum=0.9, weight_decay=0.1, clip_norm=1e-3, drop_last=True)
    body, head = personal(PerFedAvg(0.1), federation(A), training)
    close(body, [[1.0287701, -1.0145907], [0.4773275, 2.0006606]])
    close(head, [[1.0233332, 0.010015], [-0.0033056, 0.9651737], [-1.0200276, 1.0248113]])
    data = federation(batches(A, B))
    two = personal(PerFedAvg(0.1, steps=2), data, training.replace(batch_size=2))
    plain = matrices(run(FedAvg(TRAINING), data).server.variables)
    for found, expected in zip(two, plain, strict=True):
        close(found, expected, 1e-12)


@cases(
    ("111110", 2, ["111000", "000110"]),
    ("111110", 3, ["110000", "001100", "000010"]),
    ("0110", 2, ["0100", "0010"]),
    ("0100", 2, ["0100", "0100"]),
    ("110", 3, ["110", "110", "110"]),
    ("000", 2, ["000", "000"]),
)
def test_per_fedavg_divides_only_rows_of_the_batch(rows, num_parts, expected):
    def mask(digits):
        return [digit == "1" for digit in digits]

    assert [part.tolist() for part in divided(jnp.array(mask(rows)), num_parts)] == list(map(mask, expected))


def test_apfl_with_a_fixed_proportion():
    """After a round in which the client starts with its own model."""
    stored = jax.tree.map(lambda leaf: leaf[None], Own(variables(V1, V2), jnp.asarray(0.25)))
    state = run(algorithm_of(apfl=APFL(0.25, adaptive=False)), federation(A), memory={"apfl": stored})
    own, found = of_client(state.clients.memory["apfl"])
    close(matrices(own)[0], [[1.107139, -0.903714], [0.594353, 2.100168]])
    close(found, 0.25)


def test_two_rounds_of_apfl_in_pfllib():
    state = rounds_of(APFL(0.5, variant="pfllib"))
    own, alpha = of_client(state.clients.memory["it"])
    close(matrices(own)[0], [[0.95097, -0.95779], [0.53276, 1.98672]], 1e-5)
    close(alpha, 0.498538, 1e-6)


@cases("paper", "official")
def test_own_tests_of_apfl_are_of_the_mixture_with_the_model_that_a_client_has_then(variant):
    """The received one, and that at the end of its round."""

    def logits_of(state, client, inputs):
        (own, alpha), (trained, _) = (of_client(state.clients.memory[name], client) for name in ("apfl", TRAINED))
        mixed = {}
        for stage, shared in (("received", state.server.variables), ("trained", trained)):
            pairs = list(zip(matrices(own), matrices(shared), strict=True))
            if variant == "paper":
                body, head = (alpha * v + (1 - alpha) * w for v, w in pairs)
                mixed[stage] = inputs @ (head @ body).T
            else:
                v, w = (head @ body for body, head in zip(*pairs, strict=True))
                mixed[stage] = inputs @ (alpha * v + (1 - alpha) * w).T
        return mixed

    assert_own_losses(FedAvg(TRAINING, {"apfl": APFL(0.25, variant=variant)}, keep_trained=True), logits_of)


def test_two_rounds_of_fedbabu():
    """And an epoch of everything from the body that a client trained last, as in PFLlib."""
    data = system()
    state = run(FedAvg(TRAINING, {"fedbabu": FedBABU()}, keep_trained=True), data, 2)
    one, two = matrices(state.server.variables)
    close(one, [[0.9986, -0.94471], [0.50138, 1.97665]], 1e-5)
    np.testing.assert_array_equal(two, W2)
    rows, (trained, _) = data.owned_rows()[0], of_client(state.clients.memory[TRAINED])
    own = federation((np.asarray(data.train.inputs)[rows], np.asarray(data.train.labels)[rows]))
    tuned = run(FedAvg(TRAINING), own, start=masks.fill(trained, state.server.variables))  # with the frozen head
    close(matrices(tuned.server.variables)[0], [[0.93509, -0.9301], [0.54576, 1.97909]], 1e-5)


@cases("body", "head_at_server")
def test_what_fedbabu_freezes_is_frozen_in_addition(also):
    state = run(algorithm_of(TRAINING.replace(freeze=also), fedbabu=FedBABU()), federation(A))
    pairs = zip(matrices(variables()), matrices(state.server.variables), (also == "body", True), strict=True)
    for at_start, after, is_frozen in pairs:
        assert np.array_equal(at_start, after) == is_frozen


def personal_head(state, client=0):
    return np.asarray(state.clients.private["params/head/personal/kernel"][client]).T


def test_two_rounds_of_fedrod():
    state = rounds_of(FedRoD(), start=copied(), head=COPIED)
    close(matrices(state.server.variables)[0], [[0.97968, -0.9572], [0.51108, 1.98158]], 1e-5)
    close(personal_head(state), [[0.91694, -0.00557], [-0.01866, 1.08873], [-0.89828, 0.91684]], 1e-5)


def test_own_tests_of_fedrod_are_of_both_heads():
    """And of the generic one alone, which is the server's; FL-bench predicts with the personal one alone."""

    def logits_of(state, client, inputs):
        one, two = matrices(state.server.variables)
        generic, personal = (inputs @ one.T @ head.T for head in (two, personal_head(state, client)))
        return {"received": generic + personal, "global_received": generic}

    assert_own_losses(algorithm_of(fedrod=FedRoD()), logits_of, copied(), COPIED)
    features = np.array(A[0])
    outputs = Outputs(jnp.array(features), jnp.ones((2, 3)))
    alone = FedRoD(variant="fl_bench").predict(outputs, SimpleNamespace(server=copied()))
    np.testing.assert_array_equal(alone, features @ np.transpose(W2))


def test_two_rounds_of_feddbe():
    state = rounds_of(FedDBE(strength=1.0), start=variables(shift=jnp.zeros(2)), head=SHIFTED)
    common, _ = state.server.shared["it"]
    close(common, (-0.73857, 0.61523), 1e-5)
    close(matrices(state.server.variables)[0], [[0.9713, -0.93848], [0.41194, 1.87399]], 1e-5)
    close(state.clients.private["params/head/shift"][0], (0.22662, -0.12247), 1e-5)
    np.testing.assert_array_equal(state.server.variables.params["head"]["shift"], 0)


class Ones(TwoLayers):
    head_init = staticmethod(lambda fan_in, fan_out: jax.nn.initializers.ones)


@cases(({}, 0), ({"copied": True}, 1))
def test_two_heads_start_as_the_network_s_classifier(options, personal):
    head = Model(Ones(3, with_options(TwoHeads, **options)), (1, 1, 2)).init(jax.random.key(0)).params["head"]
    assert (head["kernel"] == 1).all() and (head["bias"] != 0).all()
    for name, values in head["personal"].items():
        np.testing.assert_array_equal(values, personal * head[name])


def test_the_head_that_a_method_needs_is_named():
    message = "network TwoLayers has another head; set network.head='two_heads', in Python head=nn.heads.TwoHeads$"
    check(f"^method fedrod: {message}", algorithm_of(fedrod=FedRoD()).check, MODEL)


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
    state = rounds_of(FedProto(average="clients", collected="all_epochs"))
    means, valid = state.server.shared["it"]
    close(means, [[-0.06992, -1.07967], [-0.36, 1.10203], [-0.60827, 0.4984]], 1e-5)
    assert valid.all()
    own = np.asarray(state.clients.private["params/body/kernel"][0]).T
    close(own, [[0.82021, -0.92703], [0.51001, 1.89517]], 1e-5)


def test_own_tests_of_fedproto_are_of_the_nearest_prototypes_of_own_classes():
    data = system()

    def logits_of(state, client, inputs):
        body, means = state.clients.private["params/body/kernel"][client], state.server.shared["it"].means
        is_own = np.isin(range(3), np.asarray(data.train.labels)[data.owned_rows()[client]])
        return {"received": np.where(is_own, -(((inputs @ body)[:, None] - means) ** 2).sum(2), -np.inf)}

    assert_own_losses(algorithm_of(it=FedProto(prediction="own", average="clients")), logits_of)


LAST, RECEIVED = [[0.8, 0.2], [0, 0.6], [-1.2, 0.8]], [[0.7, 0.3], [0.6, 1], [-0.7, 1.3]]


@cases(
    (1.0, [[0.930949, 0.981132], [0.680749, 1], [0.920790, 0.587079]], True),
    (10.0, [[0.556461, 0.880070], [0, 1], [0.224609, 0]], False),
)
def test_fedala_learns_weights_in_one_epoch_of_a_later_round_or_because_there_is_no_second_one(
    rate, weights, has_settled
):
    limit = {} if has_settled else dict(max_epochs=1)
    own = {"head/kernel": jnp.array([LAST]).mT}
    stored = Mixing({"head/kernel": jnp.ones((1, 2, 3))}, own, jnp.array([has_settled]))
    algorithm, start = algorithm_of(fedala=FedALA(rate=rate, share=1.0, **limit)), variables(W1, RECEIVED)
    state = run(algorithm, federation(batches(A, B)), start=start, memory={"fedala": stored})
    close(of_client(state.clients.memory["fedala"]).weights["head/kernel"].T, weights)


def test_two_rounds_of_fedala():
    state = rounds_of(FedALA(threshold=0.1, share=1.0))
    memory, weights = state.clients.memory["it"], [[0.94638, 0.98674], [0.99627, 0.91462], [0.97335, 0.99971]]
    close(memory.weights["head/kernel"][0].T, weights, 1e-5)
    assert memory.has_settled.all()
    close(matrices(state.server.variables)[0], [[0.9956, -0.94949], [0.50077, 1.9765]], 1e-5)


def test_the_next_round_of_fedala_starts_from_what_own_tests_score():
    """With a window of half of the examples; in the third round nothing is trained."""
    training = TRAINING.replace(schedule=jax.tree_util.Partial(lambda round: jnp.where(round < 2, 1.0, 0.0)))
    algorithm, data = algorithm_of(training, fedala=FedALA(share=0.5)), system()
    two, three = run(algorithm, data, 2), run(algorithm, data, 3)
    key = engine.init(algorithm, MODEL, variables(), 3, jax.random.key(1)).key
    for client in range(3):
        body, head = used_by(algorithm, two, data, key, 2, client)
        last = of_client(three.clients.memory["fedala"].last["head/kernel"], client).T
        close(head, last, 1e-12)
        close(body, matrices(two.server.variables)[0], 0)
        assert np.abs(head - matrices(two.server.variables)[1]).max() > 1e-4


def test_fedamp_of_pfllib_is_local_training():
    alone = run(FedAvg(TRAINING, private="all"), system(), 2).clients.private
    found = rounds_of(FedAMP(1000.0, 0.3, variant="pfllib")).clients.private
    jax.tree.map(lambda a, b: close(a, b, 1e-14), found, alone)


@cases(1, 9)
def test_smallest_combinations_are_those_of_all_supports(size):
    """Of many matrices, most of whose solutions have zeros, and without clients that are not allowed."""
    rng = np.random.default_rng(size)
    found_zeros = 0
    for _ in range(30):
        rows = rng.normal(size=(size, 3)) + 1
        matrix = rows @ rows.T + np.diag(rng.uniform(0.01, 0.3, size))
        allowed = rng.random(size) < 0.8
        allowed[0] = True
        found = SOLVE(jnp.array(matrix), jnp.array(allowed))
        expected = np.zeros(size)
        expected[allowed] = combination(matrix[allowed][:, allowed])
        close(found, expected, 1e-12)
        found_zeros += (expected[allowed] == 0).any()
    assert size == 1 or found_zeros


def test_smallest_combinations_in_single_precision():
    """Of a matrix whose diagonal, which decides, is small beside the rest."""
    rng = np.random.default_rng(3)
    rows = 10 * rng.normal(size=(40, 3))
    matrix = rows @ rows.T + np.diag(rng.uniform(0.5, 1, 40))
    found, exact = (SOLVE(jnp.asarray(matrix, dtype), jnp.ones(40, bool)) for dtype in (np.float32, float))
    close(found, exact, 1e-4)


def test_smallest_combinations_of_singular_matrices():
    """Two clients alike share equally; one whose statistics are exact has all the weight; nobody is allowed."""
    close(SOLVE(jnp.diag(jnp.array([0.0, 0, 1])), jnp.array([True, True, False])), [0.5, 0.5, 0])
    close(SOLVE(jnp.diag(jnp.array([0.0, 1, 1])), jnp.ones(3, bool)), [1, 0, 0])
    close(SOLVE(jnp.eye(3), jnp.zeros(3, bool)), [0, 0, 0])


LEAST_BATCHES = ((1, {}, 2), (2, dict(order="hf"), 3), (1, dict(order="hf", hessian="adapting"), 2))


@cases(
        (FedALA("Dense_1"), {}, "method it: network TwoLayers: part Dense_1: the network has no such layer"),
        (FedALA(), dict(private="head"), "FedALA: part 'head' has no params that the server changes"),
        (FedALA("none"), {}, "FedALA: part 'none' has no params"),
        (FedALA(), dict(training=TRAINING.replace(freeze="head")), "FedALA: part 'head' has no params"),
        (FedPAC(), dict(private="body"), "FedPAC: private parts body.head, expected the head, which"),
        (FedPAC(), dict(training=TRAINING.replace(steps=2)), "method it: training.steps is given too"),
        *((PerFedAvg(**options), dict(training=TRAINING.replace(batch_size=size)),
           f"PerFedAvg: training.batch_size {size}, expected at least {least}")
          for size, options, least in LEAST_BATCHES),
    )  # fmt: skip
def test_what_a_method_does_not_support_is_rejected(method, options, message):
    check(f"^{message}", FedAvg(methods={"it": method}, **options).check, MODEL)
