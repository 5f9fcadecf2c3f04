"""APFL: each client mixes a personal model with the shared one, and learns the proportion.

    mixture         vbar = alpha v + (1 - alpha) w_k
    shared model    w_k   <- w_k - learning_rate grad F(w_k)
    personal        v     <- v - learning_rate alpha grad F(vbar)
    proportion      alpha <- clip(alpha - learning_rate <v - w_k, grad F(vbar)>, 0, 1)

Deng et al., "Adaptive Personalized Federated Learning" (2020). All three steps are on the same batch. The server
averages w_k; the client stores alpha and v, which starts at the initial model. A client uses the mixture with the model
that it received.

v has the optimizer of local training, with a fresh state in every round, and its clipping. BatchNorm's running
statistics of the mixture are stored with v. Gradients include the terms of other methods; corrections act on w only.

The authors' code (``variant="official"``) mixes outputs, alpha out_v + (1 - alpha) out_w, of v and of w after its step,
both to train v and to predict. By default its alpha is fixed at 0.5; if it is adaptive, it moves in the first batch of
a round only, and by

    slope of alpha  <v' - w', alpha g_v + (1 - alpha) g_w> + 0.02 alpha,        v', w' after their steps,

with the gradients of the mixed outputs' loss, which have the factors alpha and 1 - alpha already. PFLlib
(``variant="pfllib"``) trains v by F(v), moves alpha in every batch by this slope with grad F(v) and grad F(w), and at
the end of a round replaces v by the mixture with w_k, which it scores; its default is alpha 1. In both variants w' is
here the step without momentum and weight decay, and the stored statistics are of v. The loss of mixed outputs is that
of the task, without the terms of other methods and without dropout.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Outputs, PyTree, Scalar, Variables
from fedjax_collapse.methods.base import ClientView, FinishView, GradientView, Method, PredictView, RoundView
from fedjax_collapse.schema.options import Fraction, option

_DECAY = 0.02  # of alpha, in the released code


class Own(NamedTuple):
    """A client's memory."""

    variables: Variables  # v; statistics of the mixture, in other variants of v
    alpha: jax.Array


class _Carry(NamedTuple):
    own: Own
    optimizer: PyTree
    is_first: jax.Array  # whether no batch was seen in this round, bool


class APFL(Method):
    """Mixtures of personal models with the shared one.

    Args:
        alpha: initial proportion of the personal model.
        adaptive: whether each client learns its alpha.
        variant: whether clients mix params (``paper``) or outputs (``official``, the authors' code), or train as
            ``pfllib`` does.
    """

    alpha: Fraction = 0.5
    adaptive: bool = option(True)
    variant: str = option("paper", choices=("paper", "official", "pfllib"))

    def init_memory(self, variables: Variables, shapes: Outputs) -> Own:
        return Own(variables, jnp.asarray(self.alpha, float))

    def init_carry(self, view: RoundView) -> _Carry:
        optimizer = view.training.make_optimizer(view.round)
        return _Carry(view.memory, optimizer.init(view.memory.variables.params), jnp.ones((), bool))

    def gradient(
        self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView
    ) -> tuple[PyTree, _Carry]:
        (variables, alpha), state, is_first = view.carry
        own, gradient = variables.params, gradient_of(params)
        after = jax.tree.map(lambda w, g: w - view.learning_rate * g, params, gradient)
        match self.variant:
            case "paper":
                run = mix(alpha, own, params)
                direction = gradient_of(run)
                slope = jax.tree.map(lambda g: alpha * g, direction)
            case "official":
                run, (slope, shared) = own, _of_mixed_outputs(view, variables, after, alpha)
                direction = mix(alpha, slope, shared)
            case _:
                run, slope = own, gradient_of(own)
                direction = mix(alpha, slope, gradient)
        _, statistics = view.model.apply(variables._replace(params=run), view.batch, train=True)
        optimizer = view.training.make_optimizer(view.round)
        updates, state = optimizer.update(view.training.clip(slope, view.fixed), state, own)
        new = masks.where(view.fixed, own, optax.apply_updates(own, updates))
        if self.variant == "paper":
            of_alpha = _product(own, params, direction)
        else:
            of_alpha = _product(new, after, direction) + _DECAY * alpha
        if self.adaptive:
            moved = jnp.clip(alpha - view.learning_rate * of_alpha, 0, 1)
            alpha = jnp.where(is_first, moved, alpha) if self.variant == "official" else moved
        return gradient, _Carry(Own(Variables(new, statistics), alpha), state, jnp.zeros((), bool))

    def finish(self, view: FinishView) -> tuple[Own, PyTree]:
        (variables, alpha), _, _ = view.carry
        if self.variant == "pfllib":
            variables = variables._replace(params=mix(alpha, variables.params, view.trained.params))
        return Own(variables, alpha), ()

    def personal(self, view: ClientView) -> Variables:
        variables, alpha = view.memory
        if self.variant == "paper":
            return variables._replace(params=mix(alpha, variables.params, view.server.params))
        return variables

    def predict(self, outputs: Outputs, view: PredictView) -> jax.Array:
        if self.variant != "official":
            return outputs.logits
        shared, _ = view.model.apply(view.server, view.batch, train=False)
        return mix(view.memory.alpha, outputs.logits, shared.logits)


def mix(alpha: Scalar, own: PyTree, shared: PyTree) -> PyTree:
    """Returns ``alpha own + (1 - alpha) shared``."""
    return jax.tree.map(lambda a, b: alpha * a + (1 - alpha) * b, own, shared)


def _of_mixed_outputs(view, variables, shared, alpha):
    """Returns the gradients of the loss of the mixed outputs in v and in the shared params."""

    def loss(*of_both):
        outputs = [view.model.apply(variables._replace(params=p), view.batch, train=True)[0] for p in of_both]
        logits = mix(alpha, *(each.logits for each in outputs))
        return view.model.task.loss(outputs[0]._replace(logits=logits), view.batch)

    return [masks.zero(view.fixed, g) for g in jax.grad(loss, (0, 1))(variables.params, shared)]


def _product(one, other, direction):
    """Returns ``<one - other, direction>``."""
    return optax.tree.vdot(jax.tree.map(jnp.subtract, one, other), direction)
