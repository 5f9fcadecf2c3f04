"""Methods whose server makes something for each client of the states of all: values by hand.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from personal_case import TRAINING, TwoLayers, federation, in_order, run, system
from personal_case import variables as of
from reference.personal_dispatch import combination

from fedjax_collapse import REGRESSION, FedAvg, FedDecorr, Model, UserError
from fedjax_collapse.methods import DispatchView, FedAMP, FedPAC
from fedjax_collapse.methods.fedamp import Cloud
from fedjax_collapse.methods.fedpac import smallest_combination

__all__ = ["in_order"]
pytestmark = pytest.mark.usefixtures("in_order")


def close(found, expected, tolerance=6e-6):
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


def view(private, memory, arrived, shared=(), round=0):
    """Of all clients after a round."""
    private = {path: jnp.asarray(leaf, float) for path, leaf in private.items()}
    return DispatchView(shared, private, memory, jnp.array(arrived), jnp.array(round), jax.random.key(0))


def test_fedamp_mixes_similar_models():
    """The fourth model, which did not arrive, is in no mixture, and its client keeps its own."""
    own = jnp.array([[0.0, 0], [1, 0], [0, 2], [0, 1]])
    given = view({"params/w": own}, Cloud({"w": own + 7}, jnp.zeros(4, bool)), [True, True, True, False])
    private, (mixture, is_known) = FedAMP(alpha=0.3).dispatch(given)
    close(mixture["w"], [[0.110364, 0.010989], [0.887615, 0.004043], [0.002021, 1.984968], [7, 8]])
    assert is_known.tolist() == [True, True, True, False] and private is given.private


def own_models(method, rounds=2, **options):
    state = run(FedAvg(TRAINING, {} if method is None else {"it": method}, **options), system(), rounds)
    return state.clients.private


def test_fedamp_of_pfllib_is_local_training():
    alone, pulled = own_models(None, private="all"), own_models(FedAMP(1.0, 0.3))
    for strength in (1.0, 1000.0):
        found = own_models(FedAMP(strength, 0.3, variant="pfllib"))
        jax.tree.map(lambda a, b: close(a, b, 1e-14), found, alone)
    assert max(np.abs(pulled[path] - alone[path]).max() for path in alone) > 1e-3


def test_fedpac_combines_heads():
    """Of identity bodies, and hardly trained heads that show whose they are."""
    clients = federation(
        ([(1.0, 0), (2, 0), (0, 1)], [0, 0, 1]), ([(1.0, 0.5), (0, 1.5)], [0, 1]),
        ([(-1.0, 0), (0, 2), (1, 1), (0, 1)], [2, 2, 1, 0]),
    )  # fmt: skip
    algorithm = FedAvg(TRAINING.replace(learning_rate=1e-12), {"fedpac": FedPAC()})
    heads = np.zeros((3, 2, 3))
    heads[:, 0] = np.eye(3)
    state = run(algorithm, clients, start=of([[1, 0], [0, 1]]), private={"params/head/kernel": heads})
    close(state.clients.memory["fedpac"].variance, [0.296296, 0.4375, 0.375])
    close(state.clients.memory["fedpac"].means[0], [[1, 0], [0, 1 / 3], [0, 0]])
    weights = [[0.737106, 0.201227, 0.061666], [0.297125, 0.513312, 0.189563], [0.078047, 0.162483, 0.759471]]
    close(state.clients.private["params/head/kernel"][:, 0], weights)
    means, valid = state.server.shared["fedpac"]
    close(means, [[1, 0.375], [1 / 3, 3.5 / 3], [-0.5, 1]])
    assert valid.all()


def test_fedpac_weighs_prototypes_by_clients():
    algorithm = FedAvg(TRAINING.replace(learning_rate=1e-12), {"fedpac": FedPAC(average="clients")})
    clients = federation(([(1.0, 0.0)] * 3, [0, 0, 0]), ([(3.0, 2.0)], [0]))
    means, valid = run(algorithm, clients, start=of([[1, 0], [0, 1]])).server.shared["fedpac"]
    close(means[0], [2, 1])
    assert valid.tolist() == [True, False, False]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_smallest_combinations_are_those_of_all_supports(size):
    """Of many matrices, most of whose solutions have zeros, and without clients that are not allowed."""
    rng = np.random.default_rng(size)
    solve, found_zeros = jax.jit(smallest_combination), 0
    for _ in range(30):
        rows = rng.normal(size=(size, 3)) + 1
        matrix = rows @ rows.T + np.diag(rng.uniform(0.01, 0.3, size))
        allowed = rng.random(size) < 0.8
        allowed[0] = True
        found = solve(jnp.array(matrix), jnp.array(allowed))
        expected = np.zeros(size)
        expected[allowed] = combination(matrix[allowed][:, allowed])
        close(found, expected, 1e-12)
        found_zeros += (expected[allowed] == 0).any()
    assert size == 1 or found_zeros


def test_smallest_combinations_of_singular_matrices():
    """Two clients alike share equally; one whose statistics are exact has all the weight; nobody is allowed."""
    close(smallest_combination(jnp.zeros((2, 2)), jnp.ones(2, bool)), [0.5, 0.5])
    close(smallest_combination(jnp.diag(jnp.array([0.0, 1, 1])), jnp.ones(3, bool)), [1, 0, 0])
    close(smallest_combination(jnp.eye(2), jnp.zeros(2, bool)), [0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(private="body"), "FedPAC: private parts body.head, expected the head alone"),
        (dict(training=TRAINING.replace(steps=2)), "method it: training.steps is given too"),
    ],
)
def test_what_fedpac_does_not_support_is_rejected(options, message):
    with pytest.raises(UserError, match=f"^{message}") as error:
        FedAvg(methods={"it": FedPAC()}, **options).check(Model(TwoLayers(3), (1, 1, 2)))
    assert "\n" not in str(error.value)


def test_fedpac_needs_classes():
    with pytest.raises(UserError, match="method it: the model's task has no classes"):
        FedAvg(methods={"it": FedPAC()}).check(Model(TwoLayers(3), (1, 1, 2), task=REGRESSION))


@pytest.mark.parametrize("method", [FedAMP(), FedPAC()])
def test_regularizers_change_the_result(method):
    training = TRAINING.replace(batch_size=4)
    found = [
        run(FedAvg(training, {"it": method, **beside}), system(), 2).clients.private
        for beside in ({}, {"decorr": FedDecorr(1.0)})
    ]
    assert max(np.abs(found[0][path] - found[1][path]).max() for path in found[0]) > 1e-3
