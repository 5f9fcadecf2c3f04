"""AlignedMuon: local Muon whose momentum starts from the cohort's mean, and whose steps also follow the last update.

    momentum      M <- beta M + (1 - beta) g,  u = (1 - beta) g + beta M,  from the mean M of the last cohort
    matrices      w <- w - lr (1 - gamma) s (f orth(u) + wd w) + gamma (lr / K_i) P,  f = sqrt(max(1, outputs / inputs))
    other params  w <- w - lr (1 - gamma) (AdamW's direction) + gamma (lr / K_i) P,  from zero moments in each round
    server        w <- mean_i w_i,  P = mean_i (w_i - w) / lr,  M = mean_i M_i;   K_i: number of local steps

Liu et al., "FedMuon" (arXiv 2510.27403), following the released code; the name belongs to three papers, so files are
named by what they do. ``orth`` is Newton-Schulz (``optim/muon.py``). Differs: a client divides P by its own number of
steps (there by the largest), and f of convolution kernels is that of their matrix (there 1). The paper's momentum is
0.98, while its baseline of plain local Muon has 0.95. Clients keep nothing; they send momentum along with the update.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import FinishView, GradientView, Method, RoundView, Setup
from fedjax_collapse.methods.drift.corrected_muon import check_directions
from fedjax_collapse.optim.muon import by_matrices, orthogonalize
from fedjax_collapse.schema.options import Decay, Fraction, NonNegative, Positive

_ADAM = optax.masked(  # so that clients carry no moments of matrices
    optax.scale_by_adam(b1=0.9, b2=0.95, eps=1e-10),
    lambda params: jax.tree.map(lambda leaf: leaf.ndim <= 1, params),
)


class _Means(NamedTuple):
    """Means over the cohort: of the clients' last momentum, and of their updates over the learning rate."""

    momentum: PyTree
    direction: PyTree


class AlignedMuon(Method):
    """Local Muon, aligned to the last round's update.

    Args:
        gamma: weight of the last update's direction; 0 leaves only the momentum that starts from the mean.
        scale: s, the learning rate of matrices over that of other params; published 0.5 for a ResNet-18, 10 for a
            DeiT-tiny.
        beta: of the momentum.
        weight_decay: wd, of all params.
        max_norm: largest norm of the gradient; None is none.
    """

    weighting = "equal"
    reports_update = ("direction/*",)

    gamma: Fraction = 0.5
    scale: Positive = 1.0
    beta: Decay = 0.98
    weight_decay: NonNegative = 0.01
    max_norm: Positive | None = 10.0

    def check_with(self, setup: Setup) -> None:
        check_directions("AlignedMuon", setup.training)

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return _Means(*(jax.tree.map(jnp.zeros_like, variables.params) for _ in range(2)))

    def init_carry(self, view: RoundView) -> PyTree:
        return view.shared.momentum, _ADAM.init(view.server.params)

    def gradient(self, gradient_of, params: PyTree, view: GradientView) -> tuple[PyTree, PyTree]:
        gradient, (momentum, adam) = gradient_of(params), view.carry
        clipped = view.training.replace(clip_norm=self.max_norm).clip(gradient, view.held)

        def mixed(m, g):
            return self.beta * m + (1 - self.beta) * g

        new = masks.where(view.held, momentum, jax.tree.map(mixed, momentum, clipped))
        by_muon = by_matrices(self._of_matrix, lambda leaf: leaf, jax.tree.map(mixed, new, clipped))
        by_adam, adam = _ADAM.update(clipped, adam)
        part = self.gamma / sum(steps for _, steps in view.training.phase_steps(view.client.size, view.client.budget))

        def step(weight, muon, other, last):
            scale, own = (self.scale, muon) if weight.ndim > 1 else (1, other)
            return (1 - self.gamma) * (scale * (own + self.weight_decay * weight)) - part * last

        direction = jax.tree.map(step, params, by_muon, by_adam, view.shared.direction)
        return masks.where(view.held, gradient, direction), (new, adam)

    def _of_matrix(self, matrix):
        inputs, outputs = matrix.shape
        return max(1.0, outputs / inputs) ** 0.5 * orthogonalize(matrix)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        weight, (momentum, _) = view.client.weight, view.carry
        moved = weight / view.learning_rate
        report = (weight, momentum), (moved, view.update)
        return view.memory, _Means(*(jax.tree.map(lambda leaf, f=f: f * leaf, tree) for f, tree in report))

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return report
