"""Devices that can be compiled for without having one: ``tpu:v5e:2x2``, ``gpu:h100``, ``gpu:h100:8``, ``gpu:a100``.

The compilers come as packages: ``pip install -e ".[tpu]"``, ``pip install -e ".[gpu]"``. The numbers are those of the
vendors' data sheets.
"""

import importlib.util
import os
import re
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
    """A target of compilation: its devices, and their kind."""

    devices: tuple
    chip: Chip


_PROTO = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared} threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f} l2_cache_size: {cache} clock_rate_ghz: {clock} device_memory_size: {memory}
  shared_memory_per_block_optin: {optin} cuda_compute_capability {{ major: {major} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""


def _gpu(**info):
    return Chip(info["memory"], info["bandwidth"], proto=_PROTO.format(**info))


CHIPS = {
    "h100": _gpu(
        name="NVIDIA H100 80GB HBM3", bandwidth=3.35e12, memory=84_942_979_072, cores=132, fpus=128,
        cache=52_428_800, clock=1.98, shared=233_472, optin=232_448, major=9,
    ),
    "a100": _gpu(
        name="NVIDIA A100-SXM4-80GB", bandwidth=2.04e12, memory=85_100_068_864, cores=108, fpus=64,
        cache=41_943_040, clock=1.41, shared=167_936, optin=166_912, major=8,
    ),
    "v5e": Chip(16 * _GIB, 819e9, clock=1.5e9),
}  # fmt: skip
_PACKAGES = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}
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
    model, _, size = rest.partition(":")
    chip = CHIPS.get(model)
    if chip is None or kind != ("gpu" if chip.proto else "tpu"):
        raise UserError(f"target {name!r}: expected {_EXPECTED}")
    if importlib.util.find_spec(_PACKAGES[kind]) is None:
        raise UserError(f'target {name!r}: its compiler is not installed; pip install -e ".[{kind}]"')
    if kind == "tpu":
        if not re.fullmatch("([1-9][0-9]*x[1-9][0-9]*)?", size):
            raise UserError(f"target {name!r}: topology {size!r}, expected two numbers of chips such as 2x2")
        options = dict(platform="tpu", topology_name=f"{model}:{size or '2x2'}")
    else:
        if not re.fullmatch("([1-9][0-9]*)?", size):
            raise UserError(f"target {name!r}: {size!r} devices, expected a number such as 8")
        options = dict(platform="cuda", topology_name="x", topology=f"1x1x{size or 1}", target_config=chip.proto)
    os.environ.update(_SETTINGS)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    try:
        return Topology(tuple(topologies.get_topology_desc(**options).devices), chip)
    except Exception as error:
        raise UserError(f"target {name!r}: {str(error).splitlines()[0]}; expected {_EXPECTED}") from error
