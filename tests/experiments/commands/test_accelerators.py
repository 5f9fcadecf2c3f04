"""Whole rounds, as the compilers of TPUs and GPUs make them; where those are installed (extras ``tpu`` and ``gpu``)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from composed_algorithms import composed, network_of
from conftest import cases, long_where
from small_studies import error_of
from tiny_networks import LARGE, TINY, least_model

from experiments.benchmarks.compiling import programs, topologies
from experiments.benchmarks.compiling.costs import COLLECTIVES, count_operations
from experiments.benchmarks.overheads import methods
from experiments.commands import compile_for
from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.methods import Recalibrate
from fedjax_collapse.nn.inspection import count_lowerings

pytestmark = pytest.mark.slow

TPU, GPU = "tpu:v5e:2x2", "gpu:h100:8"
FEDAVG = FedAvg(LocalTraining(1, 4, 0.01, 0.9))
AS_RESNET18 = ("resnet20", "resnet32", "resnet50", "wide_resnet")  # the same layers, slow to compile
WHOLE_BATCHES = LocalTraining(1, 5, 0.01, 0.9)  # a network's step is compiled once


@functools.cache
def topology(name):
    try:
        return topologies.find(name)
    except UserError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(str(error))


def lowered(algorithm, model, client_map, num_clients=8):
    return engine.lower(*programs.rounds(algorithm, model, client_map, num_clients))


def exchanges(program):
    operations = count_operations(program.as_text())
    return {name: operations[name] for name in COLLECTIVES if operations[name]}


def remembering(method):
    """A method whose clients keep something between rounds, and a network that it accepts."""
    if method == "FedBN":
        return FedAvg(WHOLE_BATCHES, private="batch_norm"), Model(nn.SmallCNN(10, channels=(4,)), (4, 4, 1))
    return methods()[method].replace(training=WHOLE_BATCHES), Model(nn.MLP(10, hidden=(4,)), (4, 4, 1))


def dense(**options):
    return Model(nn.MLP(10, hidden=(16,), **options), (4, 4, 1))


@pytest.mark.parametrize("target", long_where([GPU], [TPU, GPU]))
def test_a_round_of_every_method(target):
    """As many in one program as go together; listed here, as that starts JAX, and compilers are found before."""
    client_map = engine.Chunked(2, topology(target).devices[:1])
    for algorithm in composed():
        network = network_of(algorithm, 10)
        lowered(algorithm.replace(training=FEDAVG.training), network, client_map).compile()


@pytest.mark.parametrize("target", [TPU, GPU])
@pytest.mark.parametrize("network", long_where(LARGE, sorted(TINY)))
def test_a_round_of_every_network(target, network):
    model = least_model(network, num_classes=10)
    device = topology(target).devices[0]
    program = lowered(FEDAVG, model, engine.Chunked(2, (device,)))
    # the lowerings are the target's, though the process runs on a CPU
    chosen = count_lowerings(model.on(Target.of(device)), FEDAVG.training.batch_size)
    assert ("stablehlo.convolution" in program.as_text()) == ("xla" in chosen)
    assert target == GPU or set(chosen) <= {"xla"}
    if network not in AS_RESNET18:
        program.compile()


@cases(*((what, at) for what in ("fedavg", "recalibrate", "bfloat16") for at in (TPU, GPU)), ("fedavg", "tpu:v5e:2x4"))
def test_a_round_on_several_chips_exchanges_the_upload_alone(what, target):
    """Nothing is gathered; a second pass over the clients is one exchange more."""
    devices = topology(target).devices
    algorithm, model = FEDAVG, dense(dtype="bfloat16" if what == "bfloat16" else None)
    if what == "recalibrate":
        algorithm = FEDAVG.replace(methods={"recalibrate": Recalibrate()})
        model = Model(nn.SmallCNN(10, channels=(4,)), (4, 4, 1))
    client_map = engine.Sharded(len(devices), engine.Chunked(1), devices)
    program = lowered(algorithm, model, client_map, 16).compile()
    assert exchanges(program) == {"all-reduce": 2 if what == "recalibrate" else 1}


@pytest.mark.parametrize("target", [TPU, GPU])
@pytest.mark.parametrize("method", ["Scaffold", "FedDyn", "FedDC", "MOON", "FedBN"])
def test_client_states_stay_on_their_chip(target, method):
    """Where all clients are in every round; also of a number that is padded."""
    devices = topology(target).devices
    client_map = engine.Sharded(len(devices), engine.Chunked(1), devices)
    program = lowered(*remembering(method), client_map, 2 * len(devices) - 1).compile()
    assert exchanges(program) == {"all-reduce": 1}


@pytest.mark.parametrize("target", [TPU, GPU])
def test_seeds_together_exchange_nothing(target):
    """Whole runs on each chip."""
    devices, (algorithm, model) = topology(target).devices, remembering("Scaffold")
    run_map, client_map = engine.together.lay_out_runs(engine.Sharded(len(devices), engine.Chunked(1), devices), 8)
    rounds, algorithm, data, examples = programs.rounds(algorithm, model, client_map, 8)
    state = engine.init(algorithm, model, model.init(jax.random.key(0)), 8, jax.random.key(0))

    def stack(run):
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), run)

    runs = jax.eval_shape(stack, (algorithm, state, data))
    algorithm, state, data = run_map.shapes(runs, sharded=True)
    examples = run_map.shapes(examples)
    rounds = dataclasses.replace(rounds, run_map=run_map)
    assert exchanges(engine.compile_rounds(rounds, algorithm, state, data, examples, 1)) == {}


def test_a_round_that_does_not_fit_is_reduced():
    """A hundred clients with 67 million weights each, on 16 GiB."""
    chip = topology(TPU)
    model = Model(nn.MLP(10, hidden=(8192, 8192)), (4, 4, 1))
    compiled = programs.rounds(FEDAVG, model, engine.Chunked(100, chip.devices[:1]), 100)
    fitting, size = programs.fitting(*compiled, chip.chip)
    assert 1 <= fitting.layout.client_map.clients_at_once < 50
    assert 2**30 < size <= chip.chip.memory
    program = engine.lower(fitting, *compiled[1:]).compile()
    assert engine.memory.program_bytes(lambda: program) == size


def test_the_command(capsys, said, tmp_path):
    topology(TPU)
    arguments = [f"--target={TPU}", "--networks=mlp", "--clients=1,2", f"--json={tmp_path / 'rows.json'}"]
    lines = said(compile_for, *arguments).splitlines()
    assert lines[0].startswith("| network | dtype | clients |") and len(lines) == 4
    for options, words in (
        (["--networks=small_cnn", "--lowerings=fft"], "lowering 'fft': expected one of auto"),
        (["--networks=mlq"], "did you mean 'mlp'"),
        (["--methods=fedavgg"], "unknown method 'fedavgg'"),
    ):
        assert compile_for.main([f"--target={TPU}", *options]) == 2 and error_of(capsys, words)
