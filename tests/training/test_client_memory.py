"""What is stored of methods' memory: nothing of the frozen base, in any layout, and results keep their bits."""

import jax
import jax.numpy as jnp
import pytest
from conftest import assert_same_bits, cases, check, one_line, run_at_once
from small_store import save_small_store

from experiments.benchmarks.overheads import accepted
from fedjax_collapse import FedAvg, Federation, LocalTraining, Method, Model, Participation, engine, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.methods import MOON, Ditto, FedExLoRA, Scaffold
from fedjax_collapse.methods.base import Setup
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.training import client_memory
from fedjax_collapse.training.memory_check import changed_memory

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, freeze="base")
STATEFUL = {"scaffold": Scaffold(), "moon": MOON()}
SIZES = [5, 6, 3, 4, 2]
TRAINED = 16 * 2 + 2 * 6 + 6 * 3 + 3  # factors and head
BASE = 16 * 6 + 6 + 2  # and the scales


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return save_small_store(tmp_path_factory.mktemp("data") / "store", SIZES, tests=9)


def network():
    return Model(nn.MLP(3, hidden=(6,)), (4, 4, 1), adapters=LoRA(2, 2.0, layers=("Dense_0",)))


def run(store, methods, storage="host", rounds=2, **options):
    federation = Federation.from_store(store, storage="disk" if storage == "disk" else "host")
    rule = Participation(fraction=0.6, sampler=engine.HostUniform())
    options = dict(storage=storage, participation=rule, watch="all") | options
    return run_at_once(federation, network(), FedAvg(TRAINING, methods), rounds, **options)


def storing_all(monkeypatch):
    for kind in (Method, MOON):
        monkeypatch.setattr(kind, "stores_common", True)


def num_stored(result):
    """The entries that are stored for a client, by method."""
    memory = result.state.clients.memory
    return {name: sum(leaf[0].size for leaf in jax.tree.leaves(memory[name])) for name in memory}


@pytest.fixture(scope="module")
def before(store, tmp_path_factory):
    """The run that stores everything, and its folder."""
    folder = tmp_path_factory.mktemp("before")
    with pytest.MonkeyPatch.context() as patch:
        storing_all(patch)
        result = run(store, STATEFUL, folder=folder)
    assert num_stored(result) == {"scaffold": TRAINED + BASE, "moon": TRAINED + BASE + 1}
    return result, folder


@cases("host", "disk")
def test_states_are_of_the_size_of_what_is_trained(storage, store, before, tmp_path):
    """The results are those of before, bit for bit, also of a run that is resumed."""
    if storage == "disk":
        run(store, STATEFUL, storage, rounds=1, folder=tmp_path)
    result = run(store, STATEFUL, storage, folder=tmp_path if storage == "disk" else None)
    if storage == "disk":
        sizes = [path.stat().st_size for path in (tmp_path / "states").glob("[0-9]*.bin")]
        assert sum(sizes) == len(SIZES) * (2 * 4 * TRAINED + 1)
    else:
        assert num_stored(result) == {"scaffold": TRAINED, "moon": TRAINED + 1}
    assert result.metrics == before[0].metrics
    assert_same_bits(result.variables, before[0].variables)


def test_the_states_of_an_earlier_version_are_rejected(store, before):
    problem = r"memory/moon/variables/params/Dense_0/bias is float32\[5, 6\], this run needs none; use a new"
    check(problem, run, store, STATEFUL, rounds=3, folder=before[1])


def test_personal_models_keep_their_bits(store, monkeypatch):
    result = run(store, {"ditto": Ditto()}, "device")
    storing_all(monkeypatch)
    before = run(store, {"ditto": Ditto()}, "device")
    assert (num_stored(result), num_stored(before)) == ({"ditto": TRAINED}, {"ditto": TRAINED + BASE})
    assert result.metrics == before.metrics
    for client in range(len(SIZES)):
        assert_same_bits(result.personal(client), before.personal(client))


def start(method, **others):
    setup, algorithm = Setup(TRAINING, "none", network()), FedAvg(TRAINING, {**others, "it": method})
    return client_memory.initial(algorithm, setup.model.init(jax.random.key(0)), setup)["it"]


def test_what_is_no_param_of_the_base_is_stored():
    """A shuffled base is not the base; nor are kernels that the server changes always the same."""
    assert start(MOON()).variables.params["Dense_0"]["kernel"] is None
    assert start(MOON(first_round="random_init")).variables.params["Dense_0"]["kernel"].shape == (16, 6)
    memory = start(MOON(), fedex=FedExLoRA()).variables.params
    assert memory["Dense_0"]["kernel"].shape == (16, 6) and memory["Dense_0"]["bias"] is None


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "init_memory" in vars(method)])
def test_no_method_changes_what_is_not_stored(store, name):
    algorithm = FedAvg(TRAINING, {name: METHODS[name](**METHODS_WITH.get(name, {}))})
    examples = Federation.from_store(store, storage="host").train
    assert changed_memory(algorithm, accepted(algorithm, network()), examples) == []


METHODS_WITH = {
    "fedlesam": dict(stored="own"),
    "hetlora": dict(self_pruning=True),
    "feddyn": dict(evaluate="all"),
    "top_k": dict(error_feedback=True),
}


class ZerosAtFirst(Method):
    """Remembers the client's model, and zeros before its first round."""

    def init_memory(self, variables, shapes):
        return jax.tree.map(jnp.zeros_like, variables.params)

    def finish(self, view):
        return view.trained.params, ()


def test_a_method_that_changes_what_is_not_stored_is_rejected(store):
    with one_line(r"^method it: a client's round changes Dense_0/bias in its memory, which belongs to a param that no"):
        run(store, {"it": ZerosAtFirst()})
