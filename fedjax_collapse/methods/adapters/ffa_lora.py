"""FFA-LoRA: A keeps its random initial value, and only B is trained and sent, so that the mean of B is exact.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning" (ICLR 2024). All updates share the row space of
A, in all rounds: their rank is r in total.
"""

from flax import struct

from fedjax_collapse.methods.base import Method


@struct.dataclass
class FFALoRA(Method):
    """A frozen factor A."""

    freeze = "base+lora_a"
    needs = ("adapters",)
