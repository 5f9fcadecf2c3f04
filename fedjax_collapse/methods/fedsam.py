"""FedSAM: local steps take the gradient where the batch's loss is highest nearby, for flat minima.

    eps    rho g / ||g||                 g: gradient of the batch's loss at w
           rho w^2 g / || |w| g ||       entry by entry (``adaptive``)
    step   w <- optimizer(w, gradient at w + eps)

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization" (ICML 2022), after Foret et al. (ICLR
2021). ``adaptive`` is the flag of that name in FedLESAM's released code, which is off in all of its scripts; the
published FedASAM is another step, in ``fedasam.py``.

Two passes a step, about twice the cost; both are on the same batch with the same dropout, and eps is a
constant. Guard 1e-7 of the norm as in FedLESAM's released code (FedSOL's: 1e-12). The loss is all that is minimised,
with the terms of other methods; corrections (SCAFFOLD, FedDyn), clipping, momentum and weight decay follow, at w.
BatchNorm's running statistics move by the first pass alone. What is frozen, or private to the client, is not perturbed
and does not count in the norm; the released code knows neither.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import NonNegative, option
from fedjax_collapse.core.records import PyTree, Scalar
from fedjax_collapse.methods.base import GradientView, Method

_GUARD = 1e-7


@struct.dataclass
class FedSAM(Method):
    """Sharpness-aware local steps. ``rho`` is the length of the perturbation; ``adaptive`` scales it by the params."""

    rho: NonNegative = 0.1
    adaptive: bool = option(False)

    strengths = ("rho",)

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        ascent = masks.zero(view.held, gradient_of(params))
        if self.adaptive:
            return gradient_of(climbed(params, jax.tree.map(jnp.abs, params), self.rho, ascent))
        return gradient_of(jax.tree.map(jnp.add, params, of_length(self.rho, ascent)))


def climbed(params: PyTree, sizes: PyTree, rho: Scalar, gradient: PyTree, guard: float = _GUARD) -> PyTree:
    """``w + rho s^2 g / ||s g||``, entry by entry, with ``s`` the sizes and the norm over all entries."""
    ascent = of_length(rho, jax.tree.map(jnp.multiply, sizes, gradient), guard)
    return jax.tree.map(lambda w, size, e: w + size * e, params, sizes, ascent)


def of_length(length: Scalar, direction: PyTree, guard: float = _GUARD) -> PyTree:
    """The tree scaled to that norm, over all of its entries; 0 if it is 0."""
    scale = length / (optax.tree.norm(direction) + guard)
    return jax.tree.map(lambda entry: scale * entry, direction)
