"""CorrectedMuon: local steps along orthogonalised momentum, corrected for client drift as in SCAFFOLD.

    local step       M_i <- (1 - alpha) M_i + alpha g;   w_i <- w_i - eta orth(M_i - c_i + c)
    after training   c_i <- M_i;   c <- c + (1 / K) sum_i (c_i+ - c_i),   K: number of all clients
    server           w <- w + (S / K) mean_i (w_i - w),   S: number of clients whose upload arrives

Takezawa et al., "FedMuon" (ICLR 2026, arXiv 2509.26337); the name belongs to three papers, so files are named by what
they do. ``orth`` is ``U V^T`` of the decomposition of a weight (``optim/muon.py``), and v / |v| of a bias or a scale.
We know the paper by notes and a reproduction. From the reproduction are that M_i continues in the client's next round,
so that c_i is M_i there, and alpha; the paper's coefficients of Newton-Schulz are not known to us. Local
training is SGD; its momentum and weight decay, 0 in the paper, act on the direction. Private parts are trained by their
plain gradient.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import PyTree, UserError
from fedjax_collapse.methods.base import FinishView, GradientView, OverClients, RoundView, Setup
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.optim.muon import by_matrices, orthogonalize
from fedjax_collapse.schema.options import Share, option


class CorrectedMuon(OverClients):
    """Local Muon with control variates.

    Args:
        alpha: weight of the gradient in the momentum; with 1, and without ``orth``, the method is SCAFFOLD with the
            last gradient as a client's variate.
        damped: whether the server's step is the mean update times S / K, as published, or the mean update.
        exact: whether ``orth`` is by singular values instead of five steps of Newton-Schulz.
    """

    weighting = "equal"

    alpha: Share = 0.9
    damped: bool = option(True)
    exact: bool = option(False)

    def check_with(self, setup: Setup) -> None:
        check_directions("CorrectedMuon", setup.training)

    def init_carry(self, view: RoundView) -> PyTree:
        return view.memory

    def gradient(self, gradient_of, params: PyTree, view: GradientView) -> tuple[PyTree, PyTree]:
        gradient = gradient_of(params)
        momentum = jax.tree.map(lambda m, g: (1 - self.alpha) * m + self.alpha * g, view.carry, gradient)
        momentum = masks.where(view.held, view.carry, momentum)
        corrected = jax.tree.map(lambda m, c_i, c: m - c_i + c, momentum, view.memory, view.shared)
        direction = by_matrices(lambda matrix: orthogonalize(matrix, self.exact), _unit, corrected)
        return masks.where(view.held, gradient, direction), momentum

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        part = 1.0 / view.client.num_clients
        return view.carry, (jax.tree.map(lambda new, old: part * (new - old), view.carry, view.memory), part)

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, shared, report[0])

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: report[1] * leaf, update) if self.damped else update


def check_directions(method: str, training: LocalTraining) -> None:
    """Raises UserError if local training replaces, or clips, the directions that a method computes."""
    for name in ("optimizer", "clip_norm"):
        if getattr(training, name) is not None:
            raise UserError(f"{method}: it computes the direction of each step itself; leave out training.{name}")


def _unit(vector):
    norm = jnp.linalg.norm(vector)
    return jnp.where(norm < 1e-12, 0, vector / jnp.where(norm < 1e-12, 1, norm))
