"""FedASAM: FedSAM with a perturbation that scales with the magnitude of each weight.

    eps    rho t^2 g / ||t g||,   t = |w| + eta for weights, 1 for biases; entry by entry
    step   w <- optimizer(w, gradient at w + eps)

Caldarola et al., "Improving Generalization in Federated Learning by Seeking Flat Minima" (ECCV 2022), after Kwon et al.
(ICML 2021), following the released code: one norm over weights and biases together, plus 1e-16; rho 0.7 and eta 0.2 are
from its CIFAR-10 script. Weights are as in PyTorch: kernels and the scales of normalisation layers. Biases are the
params named ``bias``; a scalar param, such as the scale of an ETF head, counts as a bias. The flag ``adaptive`` of
FedLESAM's code, here ``FedSAM(adaptive=True)``, has no eta and treats biases as weights, so an entry of 0 is never
perturbed.

The number of passes, BatchNorm, frozen and private parts, and the steps after the gradient are as in ``fedsam.py``. The
paper's stochastic weight averaging at the server is not implemented.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree
from fedjax_collapse.methods.base import GradientView, Method
from fedjax_collapse.methods.drift.fedsam import perturb
from fedjax_collapse.schema.options import NonNegative

_GUARD = 1e-16


class FedASAM(Method):
    """Adaptive sharpness-aware local steps.

    Args:
        rho: norm of the perturbation; 0.7 in the released CIFAR-10 script.
        eta: added to the absolute values of the weights; 0.2 in that script.
    """

    rho: NonNegative = 0.7
    eta: NonNegative = 0.2

    strengths = ("rho",)

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        def size(path, leaf):
            is_weight = leaf.ndim > 0 and jax.tree_util.keystr(path[-1:], simple=True) != "bias"
            return jnp.abs(leaf) + self.eta if is_weight else jnp.ones_like(leaf)

        ascent = masks.zero(view.held, gradient_of(params))
        sizes = jax.tree.map_with_path(size, params)
        return gradient_of(perturb(params, sizes, self.rho, ascent, _GUARD))
