"""FedSVD: clients train B with a fixed A, which the server replaces by the right singular vectors of the product.

    B A = U S V^T, with the mean B;   A <- V^T,   B <- U S

Lee et al., "FedSVD: Adaptive Orthogonalization for Private Federated Learning with LoRA" (NeurIPS 2025). The mean of B
is exact, as in FFA-LoRA, and the product does not change; the rows of A are orthonormal.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import LowRank, change, closest, mean_factors


class FedSVD(LowRank):
    """A frozen factor A that the server replaces in each round."""

    freeze = "base+lora_a"
    moved = "lora_a"
    unused = ("finish",)
    replaces_adapters = True

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        new = {layer: closest(mean.product, mean) for layer, mean in mean_factors(update, shared).items()}
        return change(update, shared, new)
