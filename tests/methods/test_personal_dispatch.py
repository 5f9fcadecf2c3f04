"""Methods whose server makes something for each client of the states of all: values by hand.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from personal_case import TRAINING, in_order, run, system

from fedjax_collapse import FedAvg, FedDecorr
from fedjax_collapse.methods import DispatchView, FedAMP
from fedjax_collapse.methods.fedamp import Cloud

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


@pytest.mark.parametrize("method", [FedAMP()])
def test_regularizers_change_the_result(method):
    training = TRAINING.replace(batch_size=4)
    found = [
        run(FedAvg(training, {"it": method, **beside}), system(), 2).clients.private
        for beside in ({}, {"decorr": FedDecorr(1.0)})
    ]
    assert max(np.abs(found[0][path] - found[1][path]).max() for path in found[0]) > 1e-3
