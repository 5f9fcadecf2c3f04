"""RoLoRA: each round trains one factor, alternately, so that the mean of the factor is exact.

    even rounds, from 0:  B = sum_k p_k B_k, with the server's A;   odd rounds:  A = sum_k p_k A_k, with the server's B

Chen et al., "Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA" (NeurIPS 2025). B comes first,
as A has no gradient while B is 0. A variant in FedRot-LoRA's released code freezes the head as well. We found no code
of the authors.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.methods.base import Exclusion, Method, RoundView, Setup
from fedjax_collapse.schema.options import option


class RoLoRA(Method):
    """Factors that are trained alternately.

    Args:
        freeze_head: whether the head is never trained, as in a variant in FedRot-LoRA's code.
    """

    freeze_head: bool = option(False)
    needs = ("adapters",)
    excludes = tuple(
        Exclusion((hook,), "{other} would move the factor that {own} does not train; leave one out")
        for hook in ("correct", "decay")
    )

    @property
    def freeze(self) -> str:
        """The part of the network that is never trained."""
        return "base+head" if self.freeze_head else "base"

    def check_with(self, setup: Setup) -> None:
        if not setup.training.momentum_reset:
            raise UserError("RoLoRA: training.momentum_reset=False would move the factor that a round does not train")
        optimizer, one = setup.training.make_optimizer(), jnp.ones(())
        moved, _ = optimizer.update(jnp.zeros(()), optimizer.init(one), one)
        if moved != 0:
            raise UserError(
                "RoLoRA: weight decay would move the factor that a round does not train, expected 0, in "
                "training.weight_decay and in the optimizer"
            )

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        trains_b = view.round % 2 == 0
        for part, is_trained in (("lora_b", trains_b), ("lora_a", ~trains_b)):
            still = jax.tree.map(lambda g, now=is_trained: jnp.where(now, g, 0), gradient)
            gradient = masks.where(view.model.mask(part).params, still, gradient)
        return gradient
