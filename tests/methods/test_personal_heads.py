"""FedBABU, FedRoD and FedDBE: values by hand, and two rounds of PFLlib's own classes.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from personal_case import TRAINING, W1, W2, A, TwoLayers, close, federation, matrices, of_client, run, system
from personal_case import variables as of

from fedjax_collapse import FedAvg, Model, UserError
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import TRAINED, Batch, Outputs, Variables
from fedjax_collapse.methods import FedBABU, FedDBE, FedRoD
from fedjax_collapse.nn.heads import Shifted, TwoHeads
from fedjax_collapse.run.own_tests import by_stage
from fedjax_collapse.schema.options import with_options

pytestmark = pytest.mark.usefixtures("in_order")
COPIED = with_options(TwoHeads, use_bias=False, copied=True)


def rod():
    return FedAvg(TRAINING, {"fedrod": FedRoD()})


def copied():
    return of(personal={"kernel": jnp.asarray(W2).T})


def personal_head(state, client=0):
    return np.asarray(state.clients.private["params/head/personal/kernel"][client]).T


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


@pytest.mark.parametrize("also", ["body", "head_at_server"])
def test_what_a_method_freezes_is_frozen_in_addition(also):
    algorithm = FedAvg(TRAINING.replace(freeze=also), {"fedbabu": FedBABU()})
    start, state = matrices(of()), run(algorithm, federation(A))
    for at_start, after, is_frozen in zip(start, matrices(state.server.variables), (also == "body", True), strict=True):
        assert np.array_equal(at_start, after) == is_frozen


@pytest.mark.parametrize(("counts", "loss"), [((3, 1, 2), 0.246291), ((3, 0, 2), 0.082890)])
def test_losses_of_fedrod(counts, loss):
    features = np.array(A[0]) @ np.transpose(W1)
    outputs = Outputs(jnp.array(features), jnp.array(features @ np.transpose(W2)))
    batch = Batch(None, jnp.array(A[1]), jnp.ones(2, bool))
    view = SimpleNamespace(outputs=outputs, batch=batch, class_counts=jnp.array(counts), params=copied().params)
    close(FedRoD().task(view), loss)
    (term,) = FedRoD().penalty(view).values()
    close(term.strength * term.value, 0.238118)
    alone = FedRoD(variant="fl_bench")  # without the generic logits, whose copies the personal ones are
    (term,) = alone.penalty(view).values()
    close(term.value, 0.465347)
    np.testing.assert_array_equal(alone.predict(outputs, SimpleNamespace(server=copied())), outputs.logits)


def test_two_rounds_of_fedrod():
    state = run(rod(), system(), 2, start=copied(), head=COPIED)
    close(matrices(state.server.variables)[0], [[0.97968, -0.9572], [0.51108, 1.98158]], 1e-5)
    close(personal_head(state), [[0.91694, -0.00557], [-0.01866, 1.08873], [-0.89828, 0.91684]], 1e-5)


def test_own_tests_of_fedrod_are_of_both_heads():
    """And of the generic one alone, which is the server's."""
    data, model, algorithm = system(), Model(TwoLayers(3, COPIED), (1, 1, 2)), rod()
    data = data.with_tests(data.owned_rows())
    state = run(algorithm, data, 2, start=copied(), head=COPIED)
    arguments = algorithm, model, state.server, state.clients, data, data.tests, None, jax.random.key(0), 2
    found, (one, two) = by_stage(*arguments), matrices(state.server.variables)
    for client, rows in enumerate(data.owned_rows()):
        features = np.asarray(data.test.inputs)[rows].reshape(-1, 2) @ one.T
        generic, personal = features @ two.T, features @ personal_head(state, client).T
        logits = {"received": generic + personal, "global_received": generic}
        for stage, expected in logits.items():
            own = expected[np.arange(len(rows)), np.asarray(data.test.labels)[rows]]
            close(found[stage].loss[client], (np.log(np.exp(expected).sum(1)) - own).mean(), 1e-9)


SHIFTED = with_options(Shifted, use_bias=False)


@pytest.mark.parametrize(
    ("momentum", "mean", "distance", "loss", "one"),
    [
        (0.1, (0.09, 0.395), 0.044781, 2.665110, [[1.073968, -0.965976], [0.494677, 2.014146]]),
        (1.0, (0.0, 1.25), None, 10.582297, [[1.647718, -0.392226], [-0.455948, 1.063521]]),
    ],
)
def test_a_step_of_feddbe(momentum, mean, distance, loss, one):
    method, model = FedDBE(momentum=momentum), Model(TwoLayers(3, SHIFTED), (1, 1, 2))
    batch = Batch(jnp.array(A[0]).reshape(2, 1, 1, 2), jnp.array(A[1]), jnp.ones(2, bool))
    known = dict(batch=batch, carry=jnp.array([0.1, 0.3]), shared=(jnp.array([0.5, 0.5]), jnp.array(True)))

    def total(params):
        outputs, _ = model.apply(Variables(params, {}), batch, train=True)
        view = SimpleNamespace(outputs=outputs, **known)
        (term,) = method.penalty(view).values()
        return model.task.loss(outputs, batch) + term.strength * term.value, (term.value, method.carry(view))

    params = of(shift=jnp.array([0.2, -0.1])).params
    (value, (term, carried)), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    stepped = Variables(jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), {})
    close(value, loss)
    close(carried, mean)
    close(matrices(stepped)[0], one)
    close(stepped.params["head"]["shift"], (0.205492, -0.117427))
    assert distance is None or abs(term - distance) < 6e-7


def test_two_rounds_of_feddbe():
    state = run(FedAvg(TRAINING, {"feddbe": FedDBE(strength=1.0)}), system(), 2, of(shift=jnp.zeros(2)), SHIFTED)
    common, _ = state.server.shared["feddbe"]
    close(common, (-0.73857, 0.61523), 1e-5)
    close(matrices(state.server.variables)[0], [[0.9713, -0.93848], [0.41194, 1.87399]], 1e-5)
    close(state.clients.private["params/head/shift"][0], (0.22662, -0.12247), 1e-5)
    np.testing.assert_array_equal(state.server.variables.params["head"]["shift"], 0)


class Ones(TwoLayers):
    head_init = staticmethod(lambda fan_in, fan_out: jax.nn.initializers.ones)


@pytest.mark.parametrize(("options", "personal"), [({}, 0), ({"copied": True}, 1)])
def test_the_heads_start_as_the_network_s_classifier(options, personal):
    head = Model(Ones(3, with_options(TwoHeads, **options)), (1, 1, 2)).init(jax.random.key(0)).params["head"]
    assert (head["kernel"] == 1).all() and (head["bias"] != 0).all()
    for name, values in head["personal"].items():
        np.testing.assert_array_equal(values, personal * head[name])


def test_the_head_that_a_method_needs_is_named():
    message = (
        "method fedrod: network TwoLayers has another head; set network.head='two_heads', in Python "
        "head=nn.heads.TwoHeads"
    )
    with pytest.raises(UserError) as error:
        rod().check(Model(TwoLayers(3), (1, 1, 2)))
    assert str(error.value) == message
