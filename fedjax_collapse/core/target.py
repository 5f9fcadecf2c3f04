"""The device that a program is compiled for, passed as a value instead of queried from the process."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device. Networks choose their lowerings by it (``nn/lowerings``); numbers do not depend on it."""

    platform: str = "cpu"  # cpu, gpu or tpu
    kind: str = ""  # JAX's name of the device, such as "NVIDIA H100 80GB HBM3" or "TPU v5 lite"

    @classmethod
    def of(cls, device: jax.Device) -> "Target":
        """Returns the target of a device, which may belong to a topology that is not present."""
        platform = "gpu" if device.platform in ("cuda", "rocm") else device.platform
        return cls(platform, "" if platform == "cpu" else device.device_kind)

    @property
    def is_tpu(self) -> bool:
        """Whether maxima over windows are a native operation."""
        return self.platform == "tpu"

    @property
    def is_cpu(self) -> bool:
        """Whether the working set of a loop should stay in a core's cache."""
        return self.platform == "cpu"
