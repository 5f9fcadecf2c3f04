"""The systems of the benchmark: all train the same clients on the same data, and PyTorch's loops are right."""

import contextlib
import copy
import dataclasses
import itertools
import json
import subprocess
import sys
import threading
import types

import jax
import numpy as np
import pytest
import torch
from conftest import cases
from unrendered import ROOT

from experiments.benchmarks import SYSTEMS, Round, Setting, networks, rounds_of
from experiments.benchmarks.systems import pytorch_graph, pytorch_loops
from experiments.benchmarks.workloads import WORKLOADS, Data, Training, make_task
from fedjax_collapse import Batch, Model, nn
from fedjax_collapse.nn.interchange import torch_networks as pytorch_networks
from fedjax_collapse.nn.interchange import torch_weights as weights

pytestmark = pytest.mark.slow
LOOPS = [name for name, system in SYSTEMS.items() if name.startswith("pytorch") and "cpu" in system.devices]
SIMULATORS = [name for name in SYSTEMS if name in ("pfl", "flower")]


def _data(count):
    rng = np.random.default_rng(0)
    return Data(rng.integers(0, 17, (count, 8, 8, 1)).astype(np.uint8), rng.integers(0, 10, count), 0.0, 16.0)


def _ragged(labels, clients):
    """Clients of 1, 2, 3, ... examples, so that their sizes tell who they are."""
    return np.split(np.random.default_rng(1).permutation(len(labels)), np.cumsum(range(1, clients)))


# no client has more than a batch, so that the order of the examples, which systems draw differently, does not matter
TRAINING = Training(epochs=2, batch_size=10, learning_rate=0.3, momentum=0.5)
TINY = dataclasses.replace(
    WORKLOADS["mlp100"], data=_data, examples=55, split=_ragged, clients=10, cohort=4, training=TRAINING
)


@pytest.fixture(scope="module")
def tiny_task():
    return make_task(TINY, 4)


def run(name, workload, task):
    """The rounds of a system: sizes of the clients that took part, steps and loss."""
    setting, done = Setting(cores=2, layout=(jax.config.jax_num_cpu_devices, 1)), []
    for _, outcome in zip(task.cohorts, SYSTEMS[name].load()(workload, task, setting), strict=False):
        losses, samples, steps = map(np.asarray, outcome[:3])
        done.append((sorted(samples // workload.training.epochs), sum(steps), np.average(losses, weights=samples)))
    return done


def assert_same_rounds(found, expected, rtol=1e-4):
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_allclose(one[2], other[2], rtol=rtol)


def test_engine_trains_the_cohorts_of_the_task(tiny_task):
    assert tiny_task.cohorts.shape == (4, 4) and len({*map(tuple, tiny_task.cohorts)}) > 1
    for cohort, (sizes, steps, _) in zip(tiny_task.cohorts, run("fedjax_collapse", TINY, tiny_task), strict=True):
        assert sizes == sorted(cohort + 1) and steps == 2 * 4


@pytest.mark.parametrize("name", LOOPS)
def test_pytorch_loops_equal_the_engine(name, tiny_task):
    assert_same_rounds(run(name, TINY, tiny_task), run("fedjax_collapse", TINY, tiny_task))


@pytest.mark.parametrize("method", ["fedper", "ditto"])
@pytest.mark.parametrize("name", [name for name in LOOPS if SYSTEMS[name].has_methods])
def test_pytorch_loops_keep_what_is_a_clients_own(name, method):
    """In the fourth round all clients have taken part before, so that losses depend on the heads that they kept."""
    workload = dataclasses.replace(TINY, cohort=10, method=method)
    task = make_task(workload, 4)
    found = [run(system, workload, task) for system in (name, "fedjax_collapse")]
    plain = run("fedjax_collapse", dataclasses.replace(workload, method="fedavg"), task)
    losses, expected, without = (np.array([loss for _, _, loss in rounds]) for rounds in (*found, plain))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert (abs(losses[-1] - without[-1]) > 1e-3) == (method == "fedper")


class FakeCuda:
    """Graphs that are captured by running their body, and replayed by running it again on the same tensors."""

    captured = replayed = 0

    def __init__(self, monkeypatch):
        step, fake, calls = pytorch_graph.GraphSteps._step, self, []

        def recorded(steps, *arguments):
            calls.append((steps, arguments, step(steps, *arguments)))
            return calls[-1][-1]

        class Graph:
            def replay(self):
                steps, arguments, loss = self.call
                fake.replayed += 1
                loss.copy_(step(steps, *arguments))

        @contextlib.contextmanager
        def capture(graph):
            fake.captured += 1
            yield
            graph.call = calls[-1]

        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, value in dict(
            Stream=lambda: stream, current_stream=lambda: stream, CUDAGraph=Graph, graph=capture,
            stream=lambda stream: contextlib.nullcontext(),
        ).items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(pytorch_graph.GraphSteps, "_step", recorded)
        monkeypatch.setattr(pytorch_loops, "place", lambda device: "cpu")


@cases("fedavg", "fedper", "ditto")
def test_graph_loops_equal_the_plain_loop(method, monkeypatch):
    """Whole batches are replayed, the last partial one is not; what warms up and captures leaves no trace."""
    fake = FakeCuda(monkeypatch)
    training = Training(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.9)
    workload = dataclasses.replace(TINY, method=method, cohort=10, training=training)
    task = make_task(workload, 3)
    assert_same_rounds(run("pytorch-graph", workload, task), run("pytorch", workload, task), rtol=1e-5)
    whole = sum((size // 4) * 2 * 3 for size in range(1, 11))
    assert fake.replayed == whole * (2 if method == "ditto" else 1)
    assert fake.captured == (2 if method == "ditto" else 1)


def _sentences(count):
    """Of one to four targets; the client's sum over tokens is divided by their number, clients are equal."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 12, (count, 5))
    ids[np.arange(5) > rng.integers(1, 5, count)[:, None]] = 0
    return Data(ids[:, :-1].astype(np.int32), ids[:, 1:].astype(np.int32))


def _several_labels(count):
    return _data(count)._replace(labels=np.random.default_rng(2).integers(0, 2, (count, 3)).astype(np.int32))


@cases("next_word", "multi_label")
def test_pytorch_loops_of_other_tasks_equal_the_engine(task, monkeypatch):
    if task == "next_word":
        small = dict(depth=1, heads=2, mlp_width=8)
        both = nn.PflTransformer(12, embedding=8, dropout=0.0, **small), pytorch_networks.Transformer(12, 8, **small)
        data, shape = _sentences, (4,)
    else:
        both = nn.MLP(3, hidden=(4,)), pytorch_networks.build("mlp", 3, (8, 8, 1), hidden=(4,))
        data, shape = _several_labels, (8, 8, 1)
    monkeypatch.setattr(networks, "linen", lambda name: both[0])
    monkeypatch.setattr(networks, "pytorch", lambda name, shape: copy.deepcopy(both[1]))
    monkeypatch.setattr(networks, "IDS", 12)
    workload = dataclasses.replace(TINY, data=data, input_shape=shape, task=task, weighting="equal")
    made = make_task(workload, 2)
    assert_same_rounds(run("pytorch", workload, made), run("fedjax_collapse", workload, made))


def test_running_statistics_are_averaged():
    network = pytorch_networks.build("small_cnn", 10, (8, 8, 1), channels=(3,))
    server = [tensor.detach().clone() for tensor in pytorch_networks.tensors(network)]
    data = torch.randn(6, 1, 8, 8), torch.randint(10, (6,))
    clients, training = [torch.arange(2), torch.arange(2, 6)], Training(1, 4, 0.1, 0.0)
    workload = dataclasses.replace(TINY, training=training)
    alone = [copy.deepcopy(network) for _ in clients]
    for own, rows in zip(alone, clients, strict=True):
        pytorch_loops.train(pytorch_loops.Steps(own, workload), *data, rows)
    nothing_kept = [(rows, pytorch_loops._Own(workload, server)) for rows in clients]
    steps = pytorch_loops.Steps(network, workload)
    total, _ = pytorch_loops._run_part(server, data, workload, steps, nothing_kept, None)
    for summed, *own in zip(total, *map(pytorch_networks.tensors, alone), strict=True):
        torch.testing.assert_close(summed, 2 * own[0] + 4 * own[1])
    assert len(total) == len(list(network.parameters())) + 2 and not torch.equal(total[-1], 6 * server[-1])


@cases("mlp", "cnn", "two_conv_cnn")
def test_networks_are_equal_on_both_sides(name):
    shape = (12, 10, 3)
    model = Model(networks.linen(name), shape)
    variables = model.init(jax.random.key(0))
    images = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    expected, _ = model.apply(variables, Batch(images, np.zeros(2, int), np.ones(2, bool)), train=True)
    network = pytorch_networks.load(networks.pytorch(name, shape), weights.arrays_in_order(model, variables))
    found = network(torch.from_numpy(images).permute(0, 3, 1, 2)).detach().numpy()
    np.testing.assert_allclose(found, expected.logits, atol=1e-5)


def test_rounds_of_a_call_wait_until_they_are_asked_for():
    begun, threads = [], threading.active_count()

    def train(report):
        for index in itertools.count():
            begun.append(index)
            report(Round([index], [1], [1], 1, ""))

    rounds = rounds_of(train)
    assert [next(rounds).losses for _ in range(3)] == [[0], [1], [2]]
    rounds.close()  # ends it, and waits for that
    assert begun == [0, 1, 2] and threading.active_count() == threads


@pytest.mark.parametrize("name", SIMULATORS)
def test_simulators_reach_the_loss_of_pytorch(name, tmp_path):
    for package in SYSTEMS[name].needs:
        pytest.importorskip(package)
    path = tmp_path / "report.json"
    command = f"-m fedjax_collapse.command benchmark --only=mlp100 --scale=0.05 --rounds=5 --systems=pytorch,{name}"
    done = subprocess.run([sys.executable, *command.split(), f"--json={path}"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    pytorch, other = json.loads(path.read_text())["rows"]
    np.testing.assert_allclose(other["final_loss"], pytorch["final_loss"], rtol=0.01)
