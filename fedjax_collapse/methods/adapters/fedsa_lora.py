"""FedSA-LoRA: both factors are trained, only A is averaged, and B stays at its client.

    A = sum_k p_k A_k;   the model of client k is W_0 + s B_k A

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning" (ICLR 2025): A learns common
knowledge, B the client's. In the released code the classifier is not averaged either.
"""

from fedjax_collapse.methods.base import Method
from fedjax_collapse.schema.options import option


class FedSALoRA(Method):
    """Private factors B.

    Args:
        private_head: whether the head is private, as in the released code, or averaged.
    """

    private_head: bool = option(True)
    freeze = "base"
    needs = ("adapters",)

    @property
    def private(self) -> str:
        """The part of the network that stays at the clients."""
        return "lora_b+head" if self.private_head else "lora_b"
