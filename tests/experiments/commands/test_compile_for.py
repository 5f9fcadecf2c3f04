"""``compile_for.py``: its command line, and how what a compiler says is read."""

import dataclasses
import functools
import importlib.util
from types import SimpleNamespace

import jax
import pytest
from conftest import cases
from small_studies import error_of

from experiments.benchmarks import published
from experiments.benchmarks.compiling import programs, topologies
from experiments.benchmarks.compiling.costs import Cost, bytes_of_calls, compiled_for, count_operations
from experiments.commands import compile_for
from experiments.config_files import config_files
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.adapters import LoRA

HLO = """
HloModule jit_one
%fused (a: f32[2,3]) -> f32[2,3] {
  %convolution.1 = f32[2,3]{1,0} convolution(%a, %b), window={size=1}, backend_config={"estimated_cycles":"7"}
}
ENTRY %main {
  %p0 = (bf16[2,4]{1,0}, pred[3]{0}) parameter(0)
  %fusion.3 = (f32[2]{0}, f32[3]{0}) fusion(%p0, %p1), kind=kLoop, calls=%fused, metadata={op_name="x = y(z)"}
  %cudnn = (f32[4]{0}, u8[0]{0}) custom-call(%p0), custom_call_target="__cudnn$convForward"
  %gemm = f32[4]{0} custom-call(%p0), custom_call_target="__cublas$lt$matmul"
  %allocation = f32[4]{0} custom-call(), custom_call_target="AllocateBuffer"
  %dot.1 = f32[4]{0} dot(%p0, %p1), lhs_contracting_dims={1}
  %all-reduce-start = (f32[4]{0:T(8,128)}, /*index=1*/f32[4]{0}) all-reduce-start(%dot.1, %p1), to_apply=%add
  ROOT %all-reduce-done = f32[4]{0} all-reduce-done(%all-reduce-start)
}
"""


def test_operations_of_a_program():
    cost = Cost(1.0, 0, 0, count_operations(HLO), 0.0, 0.0)
    assert (cost.kernels, cost.convolutions, cost.products) == (3, 2, 2)
    assert cost.collectives == {"all-reduce": 1}
    assert bytes_of_calls(HLO) == 2 * (2 * 8 + 3 + 4 * 4)


@cases(
    (["--target=tpu:v9"], "target 'tpu:v9': expected tpu:v5e:2x2"),
    (["--target=npu:x"], "target 'npu:x': expected tpu:v5e:2x2"),
    (["--target=tpu:v5e:2by2"], "topology '2by2', expected two numbers of chips such as 2x2"),
    (["--target=gpu:h100:many"], "'many' devices, expected a number such as 8"),
)
def test_unknown_targets(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda package: package)
    assert compile_for.main(arguments) == 2 and error_of(capsys, message)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the compiler is installed")
def test_a_compiler_that_is_not_installed(capsys):
    assert compile_for.main(["--target=tpu:v5e:2x2"]) == 2
    error_of(capsys, "error: target 'tpu:v5e:2x2': its compiler is not installed; pip install -e \".[tpu]\"\n")


def test_products_without_tiles_are_not_tritons(monkeypatch, capsys):
    """Any other error of a compiler is one line."""

    def compile(options=None, message="INTERNAL: Couldn't find output tile sizes that satisfy\nhlo"):
        if not options:
            raise jax.errors.JaxRuntimeError(message)
        return options

    assert compiled_for(SimpleNamespace(compile=compile)) == {"xla_gpu_enable_triton_gemm": False}
    failing = SimpleNamespace(compile=functools.partial(compile, message="INTERNAL: some\nother"))
    monkeypatch.setattr(topologies, "find", lambda name: None)
    monkeypatch.setattr(compile_for, "step_rows", lambda *arguments: map(compiled_for, [failing]))
    assert compile_for.main(["--target=gpu:h100"]) == 2
    error_of(capsys, "error: target gpu:h100: its compiler failed (JaxRuntimeError: INTERNAL: some other)\n")


@cases(None, LoRA(2))
def test_a_step_with_adapters_shares_the_base(adapters):
    """Only without adapters is there a matrix for each client; the head is each client's own in both."""
    model = programs.network("vit", Target(), dict(size="micro", depth=1, patch=16))
    model = dataclasses.replace(model, adapters=adapters)
    step = programs.step(model, jax.devices()[0], clients=3, batch_size=2).as_text()
    assert ("<64x256xf32>" in step) == (adapters is not None) and ("<3x64x256xf32>" in step) == (adapters is None)
    assert "<3x64x10xf32>" in step


def test_rates_of_the_papers_networks(said, monkeypatch):
    """Measured ones, and one with 69.2 instead of 40.8 million multiply-adds for an image, 58,800 x 40.8 / 69.2."""
    table8 = [path for path in config_files() if str(path).endswith("feddecorr/table8.py")]
    monkeypatch.setattr(published, "config_files", lambda: table8)
    operations = published._operations  # of a measured network they cancel, and take long to count

    def of_step(network, *rest):
        return operations(network, *rest) if network[0][1] in ("resnet20", "resnet32") else 1.0

    monkeypatch.setattr(published, "_operations", of_step)
    heading, _, *lines = said(compile_for, "--papers").splitlines()
    assert heading == "| network | images | classes | batch | samples/s | by |"
    assert lines == [
        "| mobilenet_v2 | 32x32x3 | 10 | 64 | 9,730 | measured |",
        "| resnet18 | 32x32x3 | 10 | 64 | 18,900 | measured |",
        "| resnet32 | 32x32x3 | 10 | 64 | 34,700 | estimate from resnet20 |",
    ]
