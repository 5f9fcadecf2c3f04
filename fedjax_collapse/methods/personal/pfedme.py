"""pFedMe: each client's model is a proximal point of its loss, and the server's model follows these points.

    personal, ``inner_steps`` times a batch    theta <- theta - p (grad F(theta) + lambda (theta - w_k) + mu theta)
    local step                                 w_k   <- w_k - learning_rate lambda (w_k - theta)
    server                                     w     <- (1 - beta) w + beta mean w_k

Dinh et al., "Personalized Federated Learning with Moreau Envelopes" (NeurIPS 2020). All steps of theta on a batch are
on that batch. Theta starts a client's round at the received model and continues from batch to batch, as in the released
code and in PFLlib; ``reset`` starts it at w_k with every batch. A client uses the theta with which its last round
ended, and the initial model before its first.

The gradient of theta includes the terms of other methods. Corrections, clipping, momentum and weight decay act on the
step of w_k; the published method has none of them. BatchNorm's running statistics are updated by the first step of a
batch only, at theta; they are the client's, and are averaged by the server.

The defaults are the released code's for a neural network on MNIST, with a learning rate of 0.005. The code also has an
undocumented mu of 0.001 (``inner_decay``), takes 20 batches of 20 examples in a round (``LocalTraining.steps``), trains
all clients and averages the drawn ones. Neither it nor PFLlib scores theta: the code scores w_k after its training, and
PFLlib the received model, as the personal params are the same tensors as the model. PFLlib's other differences are
default values: lambda 1, p 0.01 and beta 0.
"""

from collections.abc import Callable

import jax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Variables
from fedjax_collapse.methods.base import ClientView, FinishView, GradientView, Method, RoundView
from fedjax_collapse.schema.options import Count, NonNegative, Positive, option


class PFedMe(Method):
    """Personal models that are proximal points of the clients' losses.

    Args:
        strength: factor lambda of the pull to ``w_i``; 20 on the paper's synthetic data.
        inner_steps: steps of theta on each batch, the paper's K.
        inner_rate: rate of these steps, which should be below 2 / ``strength``; 0.09 in the released code for its
            neural network.
        beta: step of the server's model to the clients' mean; 1 or 2 in the paper.
        inner_decay: weight decay mu of theta; 0.001 in the released code, undocumented.
        reset: whether theta starts every batch at ``w_i``; otherwise it starts a round at the received model.
    """

    strength: Positive = 15.0
    inner_steps: Count = 5
    inner_rate: Positive = 0.09
    beta: NonNegative = 1.0
    inner_decay: NonNegative = 0.0
    reset: bool = option(False)

    def init_memory(self, variables: Variables, shapes: Outputs) -> Variables:
        return variables

    def init_carry(self, view: RoundView) -> PyTree:
        return view.server.params

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        def step(theta):
            def moved(t, g, w):
                return t - self.inner_rate * (g + self.strength * (t - w) + self.inner_decay * t)

            return masks.where(view.fixed, theta, jax.tree.map(moved, theta, gradient_of(theta), params))

        theta = step(params if self.reset else view.carry)  # metrics are of the first call, so it is not in the loop
        theta = jax.lax.fori_loop(1, self.inner_steps, lambda _, theta: step(theta), theta)
        pull = jax.tree.map(lambda w, t: self.strength * (w - t), params, theta)
        return masks.zero(view.fixed, pull), theta

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        return view.trained._replace(params=view.carry), ()

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(lambda u: self.beta * u, update)

    def personal(self, view: ClientView) -> Variables:
        return view.memory
