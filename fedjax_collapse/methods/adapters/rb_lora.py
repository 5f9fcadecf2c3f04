"""RB-LoRA: average each rank of the padded factors over the clients that have it, and decompose the product.

    A[j] = c_j sum_k p_k A_k[j],   B[j] = c_j sum_k p_k B_k[j],   c_j = 1 / sum_{k: r_k > j} p_k

for each rank j, with factors padded by zeros; ``s B A = U S V^T`` is decomposed as in FlexLoRA, and a client receives
the first r_k singular directions in its scale. Ha et al., "RB-LoRA: Rank-Balanced Aggregation for Low-Rank Adaptation
with Federated Fine-Tuning" (Findings of EACL 2026).

The released code computes c_j and never uses it: its RB-LoRA averages padded factors by size. So ``balanced``, the
factor that c_j multiplies, is our choice. The code also takes V for its transpose, and leaves the clients' scales out
of the decomposed product. A rank that no client of the cohort has keeps its old factors; the code's c_j is 0.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.adapters._low_rank import Ranked, change, closest, padded
from fedjax_collapse.methods.base import FinishView
from fedjax_collapse.schema.options import option


class RBLoRA(Ranked):
    """Means of factors over the clients that have a rank.

    Args:
        balanced: whether c_j multiplies both ``factors``, or their ``product`` once.
    """

    balanced: str = option("factors", choices=("factors", "product"))
    replaces_adapters = True

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        weight = view.client.weight
        has = jnp.arange(view.model.adapters.rank) < self.rank_of(view)
        sums = {layer: (weight * a, weight * b) for layer, (a, b, _) in padded(view).items()}
        return view.memory, (jnp.where(has, weight, 0), sums)

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        (held, sums), new = report, {}
        share = jnp.where(held > 0, held, 1)
        for layer, old in shared.items():
            a, b = sums[layer]
            b = b / share[:, None]
            if self.balanced == "factors":
                a = a / share
            mean = old._replace(a=jnp.where(held > 0, a, old.a), b=jnp.where(held[:, None] > 0, b, old.b))
            new[layer] = closest(mean.product, old)
        return change(update, shared, new)
