"""FFA-LoRA: A keeps its random initial value, and only B is trained and sent, so that the mean of B is exact.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning" (ICLR 2024). The updates of all rounds share the
row space of A, of r dimensions.
"""

from fedjax_collapse.methods.base import Method


class FFALoRA(Method):
    """A frozen factor A."""

    freeze = "base+lora_a"
    needs = ("adapters",)
