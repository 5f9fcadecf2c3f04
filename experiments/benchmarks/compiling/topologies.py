"""Devices that can be compiled for without having one: ``tpu:v5e:2x2``, ``gpu:h100``, ``gpu:h100:8``, ``gpu:a100``.

The compilers come as packages: ``pip install -e ".[tpu]"``, ``pip install -e ".[gpu]"``. The numbers are those of the
vendors' data sheets.
"""

import importlib.util
import os
from typing import NamedTuple

import jax

from fedjax_collapse.core.records import UserError

_GIB = 2**30


class Chip(NamedTuple):
    """One kind of device."""

    memory: int  # bytes
    bandwidth: float  # bytes per second
    clock: float = 0.0  # cycles per second, where the compiler estimates cycles
    proto: str = ""  # of a GPU: what its compiler wants to know


class Topology(NamedTuple):
    """A target of compilation: its name, its devices, and their kind."""

    name: str
    devices: tuple
    chip: Chip


_PROTO = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared} threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {cache} clock_rate_ghz: {clock} device_memory_size: {memory}
  shared_memory_per_block_optin: {optin} cuda_compute_capability {{ major: {major} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


def _gpu(name, bandwidth, memory, **rest):
    proto = _PROTO.format(name=name, bandwidth=int(bandwidth), memory=memory, **rest)
    return Chip(memory, bandwidth, proto=proto)


_GPUS = {
    "h100": _gpu(
        "NVIDIA H100 80GB HBM3", 3.35e12, 84_942_979_072,
        cores=132, fpus=128, cache=52_428_800, clock=1.98, shared=233_472, optin=232_448, major=9,
    ),
    "a100": _gpu(
        "NVIDIA A100-SXM4-80GB", 2.04e12, 85_100_068_864,
        cores=108, fpus=64, cache=41_943_040, clock=1.41, shared=167_936, optin=166_912, major=8,
    ),
}  # fmt: skip
_TPUS = {"v5e": Chip(16 * _GIB, 819e9, clock=1.5e9)}
CHIPS = {**_GPUS, **_TPUS}
_SETTINGS = {  # the compilers would look for their machines: libtpu waits for one, the CUDA plugin gives up without
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
_EXPECTED = "tpu:v5e:2x2 (or another topology), gpu:h100 or gpu:a100, followed by :8 for eight of them"


def find(name: str) -> Topology:
    """Returns the target of this name. Must be called before JAX is used, which then runs on the CPU.

    Raises:
        UserError: if the target is unknown, or its compiler is not installed.
    """
    kind, _, rest = name.partition(":")
    model, _, topology = rest.partition(":")
    known = {"tpu": _TPUS, "gpu": _GPUS}.get(kind, {})
    if model not in known:
        raise UserError(f"target {name!r}: expected {_EXPECTED}")
    package = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}[kind]
    if not _is_installed(package):
        raise UserError(f'target {name!r}: its compiler is not installed; pip install -e ".[{kind}]"')
    os.environ.update(_SETTINGS)
    jax.config.update("jax_platforms", "cpu")
    options = (
        _tpu_options(name, topology or "2x2", model) if kind == "tpu" else _gpu_options(name, topology, known[model])
    )
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(**options).devices
    except Exception as error:
        raise UserError(f"target {name!r}: {str(error).splitlines()[0]}; expected {_EXPECTED}") from error
    return Topology(name, tuple(devices), known[model])


def _is_installed(package):
    return importlib.util.find_spec(package) is not None


def _tpu_options(name, topology, model):
    sides = topology.split("x")
    if len(sides) != 2 or not all(side.isdigit() and int(side) for side in sides):
        raise UserError(f"target {name!r}: topology {topology!r}, expected two numbers of chips such as 2x2")
    return dict(platform="tpu", topology_name=f"{model}:{topology}")


def _gpu_options(name, count, chip):
    if count and not (count.isdigit() and int(count)):
        raise UserError(f"target {name!r}: {count!r} devices, expected a number such as 8")
    return dict(platform="cuda", topology_name="x", topology=f"1x1x{count or 1}", target_config=chip.proto)
