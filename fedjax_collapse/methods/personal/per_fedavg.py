"""Per-FedAvg: the server's model is trained to be good after one step of gradient descent on a client's own data.

    adapted     w'  = w - alpha grad F(w; D)
    local step  w  <- w - learning_rate (I - alpha H(w; D'')) grad F(w'; D')
    ``order``   fo:  without H, the Hessian of F
                hf:  H g = (grad F(w + delta g; D'') - grad F(w - delta g; D'')) / (2 delta)

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach"
(NeurIPS 2020). A batch is divided into D and D', and with ``hf`` also D'', by the position of its rows; the first parts
have a row more if it does not divide evenly, and a batch of fewer rows is used whole for each of them. A client uses
the model after ``steps`` adapting steps, by plain SGD at rate alpha, from the received model, each on one of its
shuffled batches, before every own test; nothing is stored.

All gradients include the terms of other methods. Corrections, clipping, momentum and weight decay act on the step of w;
the published method has none of them. BatchNorm's running statistics and training metrics come from the pass on D at w.
In the paper clients have equal weights (``weighting="equal"``).

The authors published no code. PFLlib, and the authors of pFedMe, have ``fo``. In PFLlib a batch is twice as large and
an epoch is two passes, so that there are as many steps as without the method, and alpha is the learning rate. Before a
test it adapts on a batch of half this size, the size that was given; here it is a batch of training. pFedMe's
code has alpha 0.005 and learning rate 0.001, and adapts by a step of each rate, on rows of the test set. FL-bench has
learning rate and delta 0.001, and equal weights.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import PyTree, UserError, Variables
from fedjax_collapse.methods.base import ClientView, GradientView, Method, Setup
from fedjax_collapse.schema.options import Count, Positive, only_with, option


class PerFedAvg(Method):
    """A shared model that adapts to a client in a step.

    Args:
        alpha: rate of the adapting step; the paper's beta is the rate of local training.
        order: ``fo`` leaves out the Hessian (two passes), ``hf`` approximates it (four).
        delta: step delta of the difference of gradients.
        hessian: rows D'' of the Hessian: ``own`` divides a batch into D, D' and D'', ``adapting`` into two halves, with
            D'' = D.
        steps: adapting steps of the model that a client uses, each on one batch.
    """

    alpha: Positive = 0.01
    order: str = option("fo", choices=("fo", "hf"))
    delta: Positive = only_with(0.001, order="hf")
    hessian: str = option("own", choices=("own", "adapting"), order="hf")
    steps: Count = 1

    @property
    def _num_parts(self):
        return 3 if self.order == "hf" and self.hessian == "own" else 2

    def check_with(self, setup: Setup) -> None:
        batch_size = setup.training.batch_size
        if batch_size < self._num_parts:
            raise UserError(
                f"PerFedAvg: training.batch_size {batch_size}, expected at least {self._num_parts}: a batch "
                f"is divided into that many parts"
            )

    def gradient(self, gradient_of: Callable[..., PyTree], params: PyTree, view: GradientView) -> PyTree:
        adapting, meta, *own = divided(view.batch.mask, self._num_parts)
        gradient = gradient_of(moved(params, -self.alpha, gradient_of(params, adapting)), meta)
        if self.order == "fo":
            return gradient
        above, below = (gradient_of(moved(params, d, gradient), *own or [adapting]) for d in (self.delta, -self.delta))
        curved = jax.tree.map(lambda a, b: (a - b) / (2 * self.delta), above, below)
        return moved(gradient, -self.alpha, curved)

    def personal(self, view: ClientView) -> Variables:
        return view.train(
            view.server, steps=self.steps, phases=(), learning_rate=self.alpha, schedule=None, optimizer=None,
            momentum=None, weight_decay=0.0, clip_norm=None, drop_last=False,
        )  # fmt: skip


def moved(tree: PyTree, length: jax.Array | float, direction: PyTree) -> PyTree:
    """Returns ``tree + length * direction``."""
    return jax.tree.map(lambda leaf, d: leaf + length * d, tree, direction)


def divided(mask: jax.Array, num_parts: int) -> list[jax.Array]:
    """Returns masks [batch] of parts of the rows in ``mask``, in their order; each has all of them if they are fewer.

    The sizes of the parts differ by at most one row, and earlier ones are larger.
    """
    count, position = jnp.sum(mask), (jnp.cumsum(mask) - 1) * num_parts
    parts = [(i * count <= position) & (position < (i + 1) * count) for i in range(num_parts)]
    return [mask & (part | (count < num_parts)) for part in parts]
