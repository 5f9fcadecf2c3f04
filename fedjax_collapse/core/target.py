"""What programs are compiled for: a value that is handed down, so that nothing asks the process what it runs on."""

import dataclasses

import jax


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device. Networks choose their lowerings by it (``nn/convolution.py``); no number depends on it."""

    platform: str = "cpu"  # cpu, gpu or tpu
    kind: str = ""  # JAX's name of the device, such as "NVIDIA H100 80GB HBM3" or "TPU v5 lite"

    @classmethod
    def of(cls, device: jax.Device) -> "Target":
        """The device's, which may be one of a topology that is only compiled for."""
        platform = "gpu" if device.platform in ("cuda", "rocm") else device.platform
        return cls(platform, "" if platform == "cpu" else device.device_kind)

    @property
    def is_tpu(self) -> bool:
        """Whether windows are operations of its own."""
        return self.platform == "tpu"

    @property
    def is_cpu(self) -> bool:
        """Whether what a loop goes over should stay in a core's cache."""
        return self.platform == "cpu"
