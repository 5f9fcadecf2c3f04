"""FedSAM: local steps use the gradient at the nearby point where the batch's loss is highest, to find flat minima.

    eps    rho g / ||g||                 g: gradient of the batch's loss at w
           rho w^2 g / || |w| g ||       entry by entry (``adaptive``)
    step   w <- optimizer(w, gradient at w + eps)

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization" (ICML 2022), after Foret et al. (ICLR
2021). ``adaptive`` is the flag of that name in FedLESAM's released code, which is off in all of its scripts; the
published FedASAM takes a different step (``fedasam.py``).

Each step takes two passes, at about twice the cost, on the same batch with the same dropout; eps is a constant. 1e-7 is
added to the norm, as in FedLESAM's released code (FedSOL's: 1e-12). The loss includes the terms of other methods;
corrections (SCAFFOLD, FedDyn), clipping, momentum and weight decay are applied afterwards, at w. BatchNorm's running
statistics are updated by the first pass only. Frozen and private parts are not perturbed and not part of the norm; the
released code supports neither.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, Scalar
from fedjax_collapse.methods.base import GradientView, Method
from fedjax_collapse.schema.options import NonNegative, option

_GUARD = 1e-7


class FedSAM(Method):
    """Sharpness-aware local steps.

    Args:
        rho: norm of the perturbation.
        adaptive: whether the perturbation scales with the params: ``rho w^2 g / ||w g||``.
    """

    rho: NonNegative = 0.1
    adaptive: bool = option(False)

    strengths = ("rho",)

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        ascent = masks.zero(view.held, gradient_of(params))
        if self.adaptive:
            return gradient_of(perturb(params, jax.tree.map(jnp.abs, params), self.rho, ascent))
        return gradient_of(jax.tree.map(jnp.add, params, scale_to_norm(self.rho, ascent)))


def perturb(params: PyTree, sizes: PyTree, rho: Scalar, gradient: PyTree, guard: float = _GUARD) -> PyTree:
    """Returns ``w + rho s^2 g / ||s g||``, entry by entry, with ``s`` the ``sizes`` and the norm over all entries."""
    ascent = scale_to_norm(rho, jax.tree.map(jnp.multiply, sizes, gradient), guard)
    return jax.tree.map(lambda w, size, e: w + size * e, params, sizes, ascent)


def scale_to_norm(length: Scalar, direction: PyTree, guard: float = _GUARD) -> PyTree:
    """Scales ``direction`` to norm ``length``, over all of its entries; returns 0 if it is 0."""
    scale = length / (optax.tree.norm(direction) + guard)
    return jax.tree.map(lambda entry: scale * entry, direction)
