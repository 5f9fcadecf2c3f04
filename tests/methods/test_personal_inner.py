"""Per-FedAvg: values by hand, of which those of the first order are also PFLlib's.

What whole rounds do is compared with plain PyTorch in ``test_round_reference.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from personal_case import TRAINING, A, B, TwoLayers, batches, close, federation, in_order, matrices, run, variables

from fedjax_collapse import FedAvg, Model, UserError, engine
from fedjax_collapse.methods import FedDecorr, PerFedAvg
from fedjax_collapse.methods.per_fedavg import divided
from fedjax_collapse.simulation.own_tests import personal_model

__all__ = ["in_order"]
pytestmark = pytest.mark.usefixtures("in_order")
OUTER = TRAINING.replace(learning_rate=0.05, batch_size=4)
MODEL = Model(TwoLayers(3), (1, 1, 2))


def bodies(method, *rows, training=OUTER, **beside):
    """The server's first layer after a round of a client with these batches, which are one batch."""
    algorithm = FedAvg(training.replace(batch_size=2 * len(rows)), {"it": method, **beside})
    return matrices(run(algorithm, federation(batches(*rows))).server.variables)[0]


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ((A, B), dict(), [[1.012747, -0.988542], [0.499483, 2.000639]]),
        ((A, B), dict(order="hf", hessian="adapting"), [[1.012453, -0.989981], [0.499140, 1.999766]]),
        ((A, B, A), dict(order="hf"), [[1.012453, -0.989981], [0.499140, 1.999766]]),
    ],
)
def test_per_fedavg_steps_by_the_gradient_at_the_adapted_model(rows, options, expected):
    close(bodies(PerFedAvg(0.1, **options), *rows), expected)


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


def test_terms_of_regularizers_are_trained_on():
    found = [bodies(PerFedAvg(0.1), A, B, B, A, **beside) for beside in ({}, {"feddecorr": FedDecorr(0.5)})]
    assert np.abs(found[0] - found[1]).max() > 1e-4


@pytest.mark.parametrize(
    ("size", "options", "least"),
    [(1, dict(), 2), (2, dict(order="hf"), 3), (1, dict(order="hf", hessian="adapting"), 2)],
)
def test_a_batch_that_cannot_be_divided_is_rejected(size, options, least):
    algorithm = FedAvg(TRAINING.replace(batch_size=size), {"it": PerFedAvg(**options)})
    with pytest.raises(UserError, match=f"^PerFedAvg: training.batch_size {size}, expected at least {least}") as error:
        algorithm.check(MODEL)
    assert "\n" not in str(error.value)
