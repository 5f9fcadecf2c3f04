"""A compiler's report on a program: memory, operations, and a lower bound of its time."""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import jax

from experiments.benchmarks.compiling.topologies import Chip
from fedjax_collapse.core._jax_compat import bytes_accessed

_NO_TILES = "Couldn't find output tile sizes"
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COMMENT = re.compile(r"/\*.*?\*/")  # which number long tuples
_OPERATION = re.compile(r"= [^=]*? ([a-z][a-z-]*)\(")
_DEFINITION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z-]*)\((.*?)\)(?:, |$)")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Cost(NamedTuple):
    """The cost of one program on one device."""

    compile_seconds: float
    arguments: int  # bytes
    temporaries: int  # bytes
    operations: Mapping[str, int]  # of the whole program, by name; of custom calls by their targets
    bytes_moved: float  # to and from memory: by XLA's count, and what calls of libraries take and give; a loop once
    seconds: float  # the compiler's estimate, or the bound that the bytes set; for straight-line programs alone

    @property
    def kernels(self) -> int:
        """Fusions, and calls of libraries."""
        return self.operations["fusion"] + sum(self._calls.values())

    @property
    def convolutions(self) -> int:
        """XLA's own, and cuDNN's."""
        return self.operations["convolution"] + sum(n for name, n in self._calls.items() if "conv" in name)

    @property
    def products(self) -> int:
        """Matrix products: XLA's own, cuBLAS's and Triton's."""
        return self.operations["dot"] + sum(n for name, n in self._calls.items() if "gemm" in name or "blas" in name)

    @property
    def collectives(self) -> dict[str, int]:
        """Exchanges between devices, by name."""
        return {name: self.operations[name] for name in COLLECTIVES if self.operations[name]}

    @property
    def _calls(self):
        return {name: count for name, count in self.operations.items() if name.startswith("__")}


def compiled_for(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Returns the compiled program.

    Without a device, whose autotuning would choose another form, XLA of JAX 0.10.2 fails where it finds no tiles for
    one of Triton's products. All products of such a program are cuBLAS's.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _NO_TILES not in str(error):
            raise
        return lowered.compile({"xla_gpu_enable_triton_gemm": False})


def compile_program(lowered: jax.stages.Lowered, chip: Chip) -> Cost:
    """Compiles a program and reads its compiler's report."""
    start = time.perf_counter()
    compiled = compiled_for(lowered)
    taken = time.perf_counter() - start
    memory, text = compiled.memory_analysis(), compiled.as_text()
    moved = bytes_accessed(compiled) + bytes_of_calls(text)
    seconds = sum(map(int, _CYCLES.findall(text))) / chip.clock if chip.clock else moved / chip.bandwidth
    sizes = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return Cost(taken, *sizes, count_operations(text), moved, seconds)


def bytes_of_calls(text: str) -> int:
    """Returns the bytes of the operands and results of calls of libraries, of which XLA's analysis counts none."""
    sizes, moved = {}, 0
    for line in text.splitlines():
        if found := _DEFINITION.match(_COMMENT.sub("", line)):
            name, results, operation, operands = found.groups()
            sizes[name] = sum(map(_bytes, _ARRAY.findall(results)))
            if operation == "custom-call" and 'custom_call_target="__' in line:
                moved += sizes[name] + sum(sizes.get(operand, 0) for operand in re.findall(r"[\w.-]+", operands))
    return moved


def _bytes(array):
    kind, bits, shape = array
    each = 1 if kind == "pred" else 2 if kind == "bf16" else int(bits) // 8
    return each * math.prod(int(extent) for extent in shape.split(",") if extent)


def count_operations(text: str) -> Counter:
    """Counts the operations of optimised HLO by name: custom calls by target, asynchronous pairs once."""
    counts = Counter()
    for line in text.splitlines():
        found = _OPERATION.search(_COMMENT.sub("", line))
        if found is None or found[1].endswith("-done"):
            continue
        target = re.search(r'custom_call_target="([^"]*)"', line) if found[1] == "custom-call" else None
        counts[target[1] if target else found[1].removesuffix("-start")] += 1
    return counts
