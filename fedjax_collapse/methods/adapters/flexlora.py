"""FlexLoRA: average the products of the clients' adapters, and decompose the mean into each client's rank.

    M = sum_k p_k s_k B_k A_k = U S V^T;   the server's A = V_r^T and B = U_r S_r / s, of the largest rank r

A client of rank r_k receives the first r_k singular directions, in its scale ``s_k``. Bai et al., "Federated
Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources" (NeurIPS 2024). As in the released
code, B has all singular values and the scale of each client is within the sum. The model that is evaluated has the
network's rank. Signs of singular vectors are fixed.
"""

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import Ranked, change, closest
from fedjax_collapse.schema.options import option


class FlexLoRA(Ranked):
    """Singular value decomposition of the mean product.

    Args:
        roots: whether both factors have roots of the singular values, as in raFLoRA, instead of B all.
    """

    roots: bool = option(False)
    replaces_adapters = True

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return change(update, shared, {layer: closest(report[layer], old, self.roots) for layer, old in shared.items()})
