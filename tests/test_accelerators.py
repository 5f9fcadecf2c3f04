"""Whole rounds, as the compilers of TPUs and GPUs make them; where those are installed (extras ``tpu`` and ``gpu``)."""

import functools

import pytest
from tiny_networks import TINY, least_model

from experiments import compile_for
from experiments.benchmarks.overheads import methods
from experiments.compiling import programs, topologies
from experiments.compiling.costs import COLLECTIVES, count_operations
from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn
from fedjax_collapse.algorithms import Recalibrate
from fedjax_collapse.records import UserError

TPU, GPU = "tpu:v5e:2x2", "gpu:h100:8"
FEDAVG = FedAvg(LocalTraining(1, 4, 0.01, 0.9))


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


def dense(**options):
    return Model(nn.MLP(10, hidden=(16,), **options), (4, 4, 1))


@pytest.mark.parametrize("target", [TPU, GPU])
@pytest.mark.parametrize("method", sorted(methods()))
def test_a_round_of_every_method(target, method):
    algorithm = methods()[method].replace(training=FEDAVG.training)
    lowered(algorithm, dense(), engine.Chunked(2, topology(target).devices[:1])).compile()


@pytest.mark.parametrize("target", [TPU, GPU])
@pytest.mark.parametrize("network", sorted(TINY))
def test_a_round_of_every_network(target, network):
    model = least_model(network)
    program = lowered(FEDAVG, model, engine.Chunked(2, topology(target).devices[:1]))
    if network != "mlp":  # the lowering is the target's, though the process runs on a CPU
        assert "stablehlo.convolution" in program.as_text()
    program.compile()


@pytest.mark.parametrize("target", [TPU, "tpu:v5e:2x4", GPU])
@pytest.mark.parametrize("what", ["fedavg", "recalibrate", "bfloat16"])
def test_a_round_on_several_chips_exchanges_the_upload_alone(target, what):
    """Nothing is gathered; a second pass over the clients is one exchange more."""
    devices = topology(target).devices
    algorithm, model = FEDAVG, dense(dtype="bfloat16" if what == "bfloat16" else None)
    if what == "recalibrate":
        algorithm = FEDAVG.replace(methods={"recalibrate": Recalibrate()})
        model = Model(nn.SmallCNN(10, channels=(4,)), (4, 4, 1))
    client_map = engine.Sharded(len(devices), engine.Chunked(1), devices)
    operations = count_operations(lowered(algorithm, model, client_map, 16).compile().as_text())
    assert {name: operations[name] for name in COLLECTIVES if operations[name]} == {
        "all-reduce": 2 if what == "recalibrate" else 1
    }


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


def test_the_command(capsys, tmp_path):
    topology(TPU)
    arguments = [f"--target={TPU}", "--networks=mlp", "--clients=1,2", f"--json={tmp_path / 'rows.json'}"]
    assert compile_for.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| network | dtype | clients |") and len(lines) == 4
    assert compile_for.main([f"--target={TPU}", "--networks=small_cnn", "--lowerings=fft"]) == 2
    assert "lowering 'fft': expected one of auto" in capsys.readouterr().err
    assert compile_for.main([f"--target={TPU}", "--networks=mlq"]) == 2
    assert "did you mean 'mlp'" in capsys.readouterr().err
    assert compile_for.main([f"--target={TPU}", "--methods=fedavgg"]) == 2
    assert "unknown method 'fedavgg'" in capsys.readouterr().err
