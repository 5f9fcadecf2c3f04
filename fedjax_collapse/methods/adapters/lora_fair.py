"""LoRA-FAIR: average both factors, and correct B so that the product comes closer to the mean product.

    A = sum_k p_k A_k,   B = sum_k p_k B_k + D,   D minimises  |M - s B A|_F^2 + strength |D|_F^2

where M is the mean product; or ``1 - cos(M, s B A) + strength |D|_F``, the ``cosine`` objective of the paper, by steps
of gradient descent from D = 0. Clients start from A and the corrected B. The part of M outside the row space of A stays
lost. Bian et al., "LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement" (ICCV 2025).

We found no released code. The paper writes a similarity S in place of a distance, and finds D by SGD; the default
objective has a solution in closed form. Layers are corrected one by one.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree
from fedjax_collapse.losses.norms import inverse_root, root
from fedjax_collapse.methods.adapters._low_rank import LowRank, change, mean_factors
from fedjax_collapse.schema.options import Count, NonNegative, Positive, only_with, option


class LoRAFAIR(LowRank):
    """A correction of the mean of B.

    Args:
        strength: factor lambda of the correction's norm.
        objective: D minimises the ``frobenius`` norm, in closed form, or one minus the ``cosine``, as in the paper, by
            gradient descent from D = 0.
        steps: steps of the gradient descent.
        rate: learning rate of these steps, whose curvature grows as the mean of B shrinks.
    """

    strength: NonNegative = 0.01
    objective: str = option("frobenius", choices=("frobenius", "cosine"))
    steps: Count = only_with(1000, objective="cosine")
    rate: Positive = only_with(0.01, objective="cosine")

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        new = {
            layer: mean._replace(b=mean.b + self._correction(report[layer], mean))
            for layer, mean in mean_factors(update, shared).items()
        }
        return change(update, shared, new)

    def _correction(self, matrix, mean):
        """Returns D^T [r, out], from products with a s, so that no product is larger than a and b."""
        a = mean.a * mean.scale
        gram, target = a.T @ a, a.T @ matrix
        if self.objective == "frobenius":
            ridge = gram + self.strength * jnp.eye(len(gram), dtype=gram.dtype)
            return jnp.linalg.pinv(ridge, hermitian=True) @ (target - gram @ mean.b)

        def objective(correction):
            b = mean.b + correction
            cosine = jnp.sum(target * b) * inverse_root(jnp.sum(b * (gram @ b))) * inverse_root(jnp.sum(matrix**2))
            return 1 - cosine + self.strength * root(jnp.sum(correction**2))

        gradient = jax.grad(objective)
        return jax.lax.fori_loop(0, self.steps, lambda _, d: d - self.rate * gradient(d), jnp.zeros_like(mean.b))
