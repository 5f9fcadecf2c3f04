"""``compile_for.py``: its command line, and how what a compiler says is read."""

import dataclasses
import importlib.util

import jax
import pytest

from experiments.benchmarks.compiling import hours, programs, topologies
from experiments.benchmarks.compiling.costs import Cost, count_operations
from experiments.commands import compile_for
from fedjax_collapse import FedAvg
from fedjax_collapse.core.target import Target
from fedjax_collapse.methods import MOON
from fedjax_collapse.nn.adapters import LoRA

HLO = """
HloModule jit_one
%fused (a: f32[2,3]) -> f32[2,3] {
  %convolution.1 = f32[2,3]{1,0} convolution(%a, %b), window={size=1}, backend_config={"estimated_cycles":"7"}
}
ENTRY %main {
  %fusion.3 = (f32[2]{0}, f32[3]{0}) fusion(%p0, %p1), kind=kLoop, calls=%fused, metadata={op_name="x = y(z)"}
  %cudnn = (f32[4]{0}, u8[0]{0}) custom-call(%p0), custom_call_target="__cudnn$convForward"
  %gemm = f32[4]{0} custom-call(%p0), custom_call_target="__cublas$lt$matmul"
  %dot.1 = f32[4]{0} dot(%p0, %p1), lhs_contracting_dims={1}
  %all-reduce-start = (f32[4]{0:T(8,128)}, /*index=1*/f32[4]{0}) all-reduce-start(%dot.1, %p1), to_apply=%add
  ROOT %all-reduce-done = f32[4]{0} all-reduce-done(%all-reduce-start)
}
"""


def test_operations_of_a_program():
    cost = Cost(1.0, 0, 0, count_operations(HLO), 0.0, 0.0)
    assert (cost.kernels, cost.convolutions, cost.products) == (3, 2, 2)
    assert cost.collectives == {"all-reduce": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target=tpu:v9"], "target 'tpu:v9': expected tpu:v5e:2x2"),
        (["--target=npu:x"], "target 'npu:x': expected tpu:v5e:2x2"),
        (["--target=tpu:v5e:2by2"], "topology '2by2', expected two numbers of chips such as 2x2"),
        (["--target=gpu:h100:many"], "'many' devices, expected a number such as 8"),
    ],
)
def test_unknown_targets(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(topologies, "_is_installed", lambda package: True)
    assert compile_for.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the compiler is installed")
def test_a_compiler_that_is_not_installed(capsys):
    assert compile_for.main(["--target=tpu:v5e:2x2"]) == 2
    error = capsys.readouterr().err
    assert error == "error: target 'tpu:v5e:2x2': its compiler is not installed; pip install -e \".[tpu]\"\n"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--clients=0", "'0' is not a number >= 1"),
        ("--batch_size=x", "'x' is not a number"),
        ("--efficiency=1.5", "'1.5' is not a share in (0, 1]"),
        ("--chips=3", "--chips=3"),
    ],
)
def test_wrong_numbers(argument, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        compile_for.main(["--target=tpu:v5e:2x2", argument])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def published(config):
    """The cells of a published study, by name."""
    return {str(cell): cell for cell in hours.studies([config])[config].cells}


@pytest.mark.parametrize(
    ("config", "cell", "client_steps", "step"),
    [  # rounds x clients x epochs x batches of a client of mean size
        ("feddecorr/table1", "setting cifar10-0.05, arm moon", 100 * 10 * 10 * 79, ("mobilenet_v2", 32, 10, 64)),
        # a tenth of the clients; the last partial batch is left out
        ("fedmr/table2", "setting cifar100-P100C10, arm fedavg", 400 * 10 * 10 * 3, ("wide_resnet", 32, 100, 128)),
        ("feddecorr/table3", "setting office, arm fedbn", 300 * 4 * 1 * 1, ("alexnet", 256, 10, 64)),  # 62 images
    ],
)
def test_the_work_of_a_published_run(config, cell, client_steps, step, monkeypatch):
    monkeypatch.setattr(hours, "relative_operations", lambda algorithm, outputs: 1.5)
    work = hours.work(published(config)[cell])
    assert work.client_steps == client_steps and work.operations == 1.5
    name, size, classes, batch_size = step
    assert work.step == ((("name", name),), (size, size, 3), classes, batch_size)


@pytest.mark.parametrize("adapters", [None, LoRA(2)])
def test_a_step_with_adapters_shares_the_base(adapters):
    """Only without adapters is there a matrix for each client; the head is each client's own in both."""
    model = programs.network("vit", Target(), dict(size="micro", depth=1, patch=16))
    model = dataclasses.replace(model, adapters=adapters)
    step = programs.step(model, jax.devices()[0], clients=3, batch_size=2).as_text()
    assert ("<64x256xf32>" in step) == (adapters is not None) and ("<3x64x256xf32>" in step) == (adapters is None)
    assert "<3x64x10xf32>" in step


def test_operations_of_a_method():
    """MOON runs two models more on each batch, and a step is about three runs of one."""
    assert 1.5 < hours.relative_operations(FedAvg(methods={"moon": MOON()}), {}) < 1.8


def test_a_study_of_unknown_data_or_name(capsys, monkeypatch):
    monkeypatch.setattr(topologies, "find", lambda name: None)
    assert compile_for.main(["--target=gpu:h100", "--papers=fedecorr/table1"]) == 2
    error = capsys.readouterr().err
    assert "did you mean feddecorr/table1" in error and error.count("\n") == 1
    monkeypatch.delitem(hours.PUBLISHED, "cifar10")
    assert compile_for.main(["--target=gpu:h100", "--papers=feddecorr/figure1"]) == 2
    assert "data source 'cifar10': expected one of cifar100" in capsys.readouterr().err


def test_hours_of_a_study(capsys, monkeypatch):
    """Client-steps of all runs, by the seconds of ten of them."""
    topology = topologies.Topology("gpu:h100", tuple(jax.devices()), topologies.Chip(2**30, 1e9, 1e12))
    monkeypatch.setattr(topologies, "find", lambda name: topology)
    monkeypatch.setattr(hours, "relative_operations", lambda algorithm, outputs: 1.5)
    monkeypatch.setattr(hours, "speed", lambda *_: hours.Speed(10, 0.01, "bytes", 1.0))
    assert compile_for.main(["--target=gpu:h100", "--papers=feddecorr/figure1", "--efficiency=0.5"]) == 0
    steps, study = capsys.readouterr().out.split("\n\n")
    assert "| resnet20 | 32x32x3 | 10 | 64 | 10 | 10,000.0 | 6,400 | bytes |" in steps
    assert "| hours at least | hours at 50% |" in study
    # 4 cells, 3 seeds, 790,000 client-steps of 10 ms each, with half as many operations again as FedAvg's
    assert "| feddecorr/figure1:full | 12 | 14.2 | 40 | 79 |" in study


def test_speed_of_a_step():
    step = hours.Step((("hidden", (64,)), ("name", "mlp")), (4, 4, 1), 10, 32)
    chip = topologies.Chip(2**30, 1e9, 1e15)
    topology = topologies.Topology("cpu", tuple(jax.devices("cpu")), chip)
    fast = hours.speed(step, topology, 4)
    assert (fast.clients, fast.bound) == (4, "bytes") and fast.seconds > 0
    slow = hours.speed(step, topology._replace(chip=chip._replace(peak=1e6)), 4)
    # forward, and twice as much backward but for the first layer's inputs, of a network with 16, 64 and 10 units
    products = 2 * 32 * (2 * 16 * 64 + 3 * 64 * 10)
    assert slow.bound == "operations" and slow.seconds * 1e6 == pytest.approx(products, rel=0.2)
    assert hours.speed(step, topology._replace(chip=chip._replace(memory=1)), 4).clients == 1
