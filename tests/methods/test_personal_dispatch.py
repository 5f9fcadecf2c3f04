"""Methods whose server makes something for each client of the states of all: values by hand.

What each method stores after whole rounds is compared with plain PyTorch in ``test_round_reference.py``.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line
from personal_case import TRAINING, TwoLayers, close, federation, run, system
from personal_case import variables as of
from reference.personal_dispatch import combination

from fedjax_collapse import FedAvg, Model
from fedjax_collapse.core.records import Variables
from fedjax_collapse.methods import DispatchView, FedAMP, FedFomo, FedPAC
from fedjax_collapse.methods.personal.fedamp import Cloud
from fedjax_collapse.methods.personal.fedfomo import Offers
from fedjax_collapse.methods.personal.fedpac import smallest_combination

pytestmark = pytest.mark.usefixtures("in_order")
SOLVE = jax.jit(smallest_combination)


def view(private, memory, arrived, round=0, key=0):
    """Of all clients after a round."""
    private = {path: jnp.asarray(leaf, float) for path, leaf in private.items()}
    return DispatchView((), private, memory, jnp.array(arrived), jnp.array(round), jax.random.key(key))


def test_fedamp_mixes_similar_models():
    """The fourth model, which did not arrive, is in no mixture, and its client keeps its own."""
    own = jnp.array([[0.0, 0], [1, 0], [0, 2], [0, 1]])
    given = view({"params/w": own}, Cloud({"params/w": own + 7}, jnp.zeros(4, bool)), [True, True, True, False])
    private, (mixture, is_known) = FedAMP(alpha=0.3).dispatch(given)
    close(mixture["params/w"], [[0.110364, 0.010989], [0.887615, 0.004043], [0.002021, 1.984968], [7, 8]])
    assert is_known.tolist() == [True, True, True, False] and private is given.private


def own_models(method, rounds=2, **options):
    state = run(FedAvg(TRAINING, {} if method is None else {"it": method}, **options), system(), rounds)
    return state.clients.private


def test_fedamp_of_pfllib_is_local_training():
    alone, found = own_models(None, private="all"), own_models(FedAMP(1000.0, 0.3, variant="pfllib"))
    jax.tree.map(lambda a, b: close(a, b, 1e-14), found, alone)


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


@pytest.mark.parametrize("size", [1, 9])
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(private="body"), "FedPAC: private parts body.head, expected the head, which"),
        (dict(training=TRAINING.replace(steps=2)), "method it: training.steps is given too"),
    ],
)
def test_what_fedpac_does_not_support_is_rejected(options, message):
    with one_line(f"^{message}"):
        FedAvg(methods={"it": FedPAC()}, **options).check(Model(TwoLayers(3), (1, 1, 2)))


def received(method, offered, begun=(1.0, 0)):
    """What a client with the model (1, 0) starts from, and remembers: it has losses at four models."""
    models, ids = jnp.array([(3.0, 0), (1, 0.5), (1, 0.25)]), jnp.array([0, 1, 2 if offered else 4])
    kept = {"params/w": jnp.array(begun)} if method.variant == "pfllib" else {}

    def loss(w, batch):
        return jnp.interp(w[0] + 10 * w[1], jnp.array([1, 3, 3.5, 6]), jnp.array([1.2, 0.9, 1.1, 1.3]))

    model = SimpleNamespace(
        apply=lambda variables, batch, train: (variables.params["w"], {}), task=SimpleNamespace(loss=loss)
    )
    client = SimpleNamespace(size=4, held_out=2, num_clients=4)
    batch = SimpleNamespace(mask=jnp.array([True, True, False]))
    memory = Offers({"params/w": models}, ids, jnp.zeros(3), kept, jnp.zeros(4), jnp.array(True))
    own = Variables({"w": jnp.array([1.0, 0])}, {})
    given = dict(model=model, client=client, server=own, memory=memory)
    start, memory = method.receive(SimpleNamespace(over_batches=lambda add, total, *_: add(total, batch), **given))
    return start.params["w"], memory


def test_fedfomo_weighs_models_by_their_gains():
    start, memory = received(FedFomo(3), offered=True)
    close(start, [1.545468, 0.181816])
    close(memory.gains, [0.3 / 2.00001, -0.1 / 0.50001, 0.1 / 0.25001])
    start, memory = received(FedFomo(3), offered=False)  # the last is of no client
    close(start, [3, 0])
    close(memory.gains, [0.3 / 2.00001, -0.1 / 0.50001, 0])


def test_fedfomo_of_pfllib_compares_with_the_start_of_the_last_training():
    """At (3, 0) no model is better, so that the client keeps (1, 0), where its next training starts."""
    start, memory = received(FedFomo(3, variant="pfllib"), offered=True, begun=(3.0, 0))
    close(start, [1, 0])
    close(memory.begun["params/w"], [1, 0])
    assert (memory.gains <= 0).all() and (memory.gains[1:] < 0).all()


def offers(method, arrived, received, gains, round=0, keys=1):
    """Whose models four clients get, [keys, clients, models]; the server knew the fourth's."""
    count = len(received[0])
    memory = Offers(
        {"params/w": jnp.zeros((4, count))}, jnp.array(received), jnp.array(gains, float), {},
        jnp.zeros((4, 4)), jnp.array([False, False, False, True]),
    )  # fmt: skip

    def dispatch(key):
        given = DispatchView((), {"params/w": jnp.arange(4.0)}, memory, jnp.array(arrived), jnp.array(round), key)
        return method.dispatch(given)[1]

    return jax.jit(jax.vmap(dispatch))(jax.random.split(jax.random.key(0), keys))


def test_fedfomo_sends_the_models_with_the_largest_scores():
    """Uploads of the first two arrived, and the server knows the fourth's model, but not the third's."""
    ids, gains = [[1, 3], [0, 3], [0, 1], [0, 1]], [[-1, 2], [3, 4], [7, 8], [9, 9]]
    paper, of_pfllib = FedFomo(2, explore=0.0), FedFomo(2, explore=0.0, variant="pfllib")
    found = offers(paper, [True, True, False, False], ids, gains)
    assert found.ids[0, :2].tolist() == [[3, 1], [3, 0]]
    assert sorted(found.ids[0, 3].tolist()) == [0, 1] and not np.any(found.ids == 2)
    close(found.scores[0], [[0, -1, 0, 2], [3, 0, 0, 4], [0, 0, 0, 0], [0, 0, 0, 0]])
    close(found.models["params/w"], found.ids)
    found = offers(of_pfllib, [True, True, False, False], ids, gains)
    assert found.ids[0, :2].tolist() == [[3, 0], [3, 0]] and found.ids[0, 3, 0] == 3
    found = offers(paper, [False] * 4, ids, gains)  # there are fewer than two models
    assert found.ids[0].tolist() == [[3, 4], [3, 4], [3, 4], [4, 4]]


def test_fedfomo_explores():
    """In the round with number 4, with probability 0.5 - 4 / 10, when two of three choices are other models."""
    best = [[1], [2], [3], [0]]
    found = offers(FedFomo(1, explore=0.5, explore_decay=0.1), [True] * 4, best, [[1.0]] * 4, round=3, keys=3000)
    is_best, is_own = (np.mean(found.ids[..., 0] == np.array(of)) for of in ([1, 2, 3, 0], [0, 1, 2, 3]))
    assert is_own == 0 and abs(is_best - (1 - 0.1 * 2 / 3)) < 0.01
    assert np.ptp(np.bincount(found.ids.ravel())) < 200  # of 3,000 each
