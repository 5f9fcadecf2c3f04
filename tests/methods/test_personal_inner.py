"""Per-FedAvg and APFL: values by hand, some of which are also PFLlib's, and two rounds of its own classes.

What whole rounds do is compared with plain PyTorch in ``test_round_reference.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line
from personal_case import (
    TRAINING,
    V1,
    V2,
    A,
    B,
    TwoLayers,
    batches,
    close,
    federation,
    matrices,
    of_client,
    run,
    system,
    variables,
)

from fedjax_collapse import FedAvg, Model, engine
from fedjax_collapse.core.records import TRAINED
from fedjax_collapse.methods import APFL, PerFedAvg
from fedjax_collapse.methods.personal.apfl import Own
from fedjax_collapse.methods.personal.per_fedavg import divided
from fedjax_collapse.run.own_tests import by_stage, personal_model

pytestmark = pytest.mark.usefixtures("in_order")
OUTER = TRAINING.replace(learning_rate=0.05, batch_size=4)
MODEL = Model(TwoLayers(3), (1, 1, 2))


def test_per_fedavg_with_the_hessian_at_the_adapted_model():
    """The other orders and Hessians are in ``test_round_reference.py``."""
    algorithm = FedAvg(OUTER, {"it": PerFedAvg(0.1, order="hf", hessian="adapting")})
    body, _ = matrices(run(algorithm, federation(batches(A, B))).server.variables)
    close(body, [[1.012453, -0.989981], [0.499140, 1.999766]])


def personal(method, training=OUTER, data=None):
    data = data or federation(A)
    algorithm = FedAvg(training, {"per_fedavg": method})
    state = engine.init(algorithm, MODEL, variables(), 1, jax.random.key(0))
    return matrices(
        personal_model(MODEL, algorithm, state.server, state.clients, data.train, data.ownership, state.key, 0, 0)
    )


def test_a_client_of_per_fedavg_adapts_by_plain_steps_on_its_own_data():
    """Whatever the options of local training."""
    training = OUTER.replace(momentum=0.9, weight_decay=0.1, clip_norm=1e-3, drop_last=True)
    body, head = personal(PerFedAvg(0.1), training)
    close(body, [[1.0287701, -1.0145907], [0.4773275, 2.0006606]])
    close(head, [[1.0233332, 0.010015], [-0.0033056, 0.9651737], [-1.0200276, 1.0248113]])
    data = federation(batches(A, B))
    two = personal(PerFedAvg(0.1, steps=2), training.replace(batch_size=2), data)
    plain = matrices(run(FedAvg(TRAINING), data).server.variables)
    for found, expected in zip(two, plain, strict=True):
        close(found, expected, 1e-12)


@pytest.mark.parametrize(
    ("rows", "num_parts", "expected"),
    [
        ("111110", 2, ["111000", "000110"]),
        ("111110", 3, ["110000", "001100", "000010"]),
        ("0110", 2, ["0100", "0010"]),
        ("0100", 2, ["0100", "0100"]),
        ("110", 3, ["110", "110", "110"]),
        ("000", 2, ["000", "000"]),
    ],
)
def test_only_rows_of_the_batch_are_divided(rows, num_parts, expected):
    def mask(digits):
        return [digit == "1" for digit in digits]

    assert [part.tolist() for part in divided(jnp.array(mask(rows)), num_parts)] == list(map(mask, expected))


@pytest.mark.parametrize(
    ("size", "options", "least"),
    [(1, dict(), 2), (2, dict(order="hf"), 3), (1, dict(order="hf", hessian="adapting"), 2)],
)
def test_a_batch_that_cannot_be_divided_is_rejected(size, options, least):
    algorithm = FedAvg(TRAINING.replace(batch_size=size), {"it": PerFedAvg(**options)})
    with one_line(f"^PerFedAvg: training.batch_size {size}, expected at least {least}"):
        algorithm.check(MODEL)


def test_a_proportion_of_apfl_that_is_fixed():
    """After a round in which the client starts with its own model."""
    stored = jax.tree.map(lambda leaf: leaf[None], Own(variables(V1, V2), jnp.asarray(0.25)))
    state = run(FedAvg(TRAINING, {"apfl": APFL(0.25, adaptive=False)}), federation(A), memory={"apfl": stored})
    own, found = of_client(state.clients.memory["apfl"])
    close(matrices(own)[0], [[1.107139, -0.903714], [0.594353, 2.100168]])
    close(found, 0.25)


def test_two_rounds_of_apfl_in_pfllib():
    state = run(FedAvg(TRAINING, {"apfl": APFL(0.5, variant="pfllib")}), system(), 2)
    own, alpha = of_client(state.clients.memory["apfl"])
    close(matrices(own)[0], [[0.95097, -0.95779], [0.53276, 1.98672]], 1e-5)
    close(alpha, 0.498538, 1e-6)
    close(matrices(state.server.variables)[0], [[0.99585, -0.94915], [0.50028, 1.976]], 1e-5)


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_own_tests_of_apfl_are_of_the_mixture_with_the_model_that_a_client_has_then(variant):
    """The received one, and that at the end of its round."""
    data = system()
    data = data.with_tests(data.owned_rows())
    algorithm = FedAvg(TRAINING, {"apfl": APFL(0.25, variant=variant)}, keep_trained=True)
    state = run(algorithm, data, 2)
    arguments = algorithm, MODEL, state.server, state.clients, data, data.tests, None, jax.random.key(0), 2
    found = by_stage(*arguments)
    for client, rows in enumerate(data.owned_rows()):
        inputs, labels = (np.asarray(of)[rows] for of in (data.test.inputs, data.test.labels))
        own, alpha = of_client(state.clients.memory["apfl"], client)
        trained, _ = of_client(state.clients.memory[TRAINED], client)
        for stage, shared in (("received", state.server.variables), ("trained", trained)):
            pairs = list(zip(matrices(own), matrices(shared), strict=True))
            if variant == "paper":
                body, head = (alpha * v + (1 - alpha) * w for v, w in pairs)
                logits = inputs.reshape(-1, 2) @ (head @ body).T
            else:
                v, w = (head @ body for body, head in zip(*pairs, strict=True))
                logits = inputs.reshape(-1, 2) @ (alpha * v + (1 - alpha) * w).T
            lost = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), labels]
            close(found[stage].loss[client], lost.mean(), 1e-9)
