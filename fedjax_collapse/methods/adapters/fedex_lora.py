"""FedEx-LoRA: average both factors, and add the missing part of the mean product to the frozen weights.

    A = sum_k p_k A_k,   B = sum_k p_k B_k,   W_0 <- W_0 + sum_k p_k s B_k A_k - s B A

Singhal et al., "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Foundation Models" (ACL 2025).
The server moves the base, which clients never train; the residual, of rank up to r times the number of clients, is sent
to them. The released code weights clients equally (``weighting="equal"``), and adds the transposed residual, which is
right for GPT-2's layers and wrong for others; here it is not transposed.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import LowRank, mean_factors
from fedjax_collapse.nn.adapters import added_to_kernels


class FedExLoRA(LowRank):
    """The residual of averaging factors, added to the base."""

    moved = "adapted"

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        means = mean_factors(update, shared)
        return added_to_kernels(update, {layer: report[layer] - mean.product for layer, mean in means.items()})
