"""The gradient of one local step: of the task's loss plus all methods' terms, with the methods' corrections."""

import functools

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks, user_code
from fedjax_collapse.core.randomness import TASK, method_key
from fedjax_collapse.core.records import Batch, Key, Outputs, PyTree, Variables
from fedjax_collapse.losses import masked_mean
from fedjax_collapse.methods.base import GradientView, LocalView, RoundView, check_returned
from fedjax_collapse.training.local.context import LocalContext

FrozenOutputs = dict[str, dict[str, Outputs]]  # by method, then by the method's name for the model


def frozen_outputs(context: LocalContext, batch: Batch) -> FrozenOutputs:
    """Returns, for each method, the outputs of the frozen models that it requests."""
    server, memory, outputs = context.server, context.client.state.memory, {}
    for name, method in context.algorithm.methods.items():
        models = method.frozen(server.variables, server.shared[name], memory[name])
        outputs[name] = {key: context.model.apply(model, batch, train=False)[0] for key, model in models.items()}
    return outputs


def gradient_and_metrics(
    context: LocalContext, variables: Variables, batch: Batch, frozen: FrozenOutputs, key: Key, fixed: PyTree
) -> tuple[PyTree, PyTree, dict[str, jax.Array]]:
    """Returns the gradient for params, the new running statistics, and every part of the loss by name, for one batch.

    Args:
        context: the client's round.
        variables: the current model.
        batch: the batch.
        frozen: the outputs of frozen models on the batch.
        key: of this step.
        fixed: the mask of the params that are not trained.
    """
    loss, passes = functools.partial(_loss, context, batch, frozen, key), []

    def gradient_of(params):
        gradient, outcome = jax.grad(loss, has_aux=True)(params, variables.batch_stats)
        passes.append(outcome)
        return masks.zero(fixed, gradient)

    for name, method in context.algorithm.having("gradient").items():
        held = masks.union(fixed, context.model.mask(context.algorithm.private_part).params)
        view = GradientView(**context.view_fields(name), held=held)
        gradient = method.gradient(gradient_of, variables.params, view)
        return check_returned(name, "gradient", gradient, variables.params), *passes[0]
    return gradient_of(variables.params), *passes[0]


def correct(context: LocalContext, gradient: PyTree, params: PyTree, fixed: PyTree) -> PyTree:
    """Returns the gradient that the optimizer sees: corrected by the methods, clipped, then decayed by the methods.

    Params that are not trained do not count in the norm, and the client's private params are not corrected.
    """
    private, training = context.model.mask(context.algorithm.private_part).params, context.training
    for name, method in context.algorithm.having("correct").items():
        corrected = method.correct(gradient, params, RoundView(**context.view_fields(name)))
        corrected = check_returned(name, "correct", corrected, params)
        gradient = masks.where(private, gradient, corrected)
    if training.clip_norm is not None:
        norm = optax.tree.norm(masks.zero(fixed, gradient))
        scale = jnp.minimum(training.clip_norm / (norm + 1e-6), 1)
        gradient = jax.tree.map(lambda g: scale * g, gradient)
    for name, method in context.algorithm.having("decay").items():
        strength = method.decay(RoundView(**context.view_fields(name)))
        decayed = jax.tree.map(lambda g, w, strength=strength: g + strength * w, gradient, params)
        gradient = masks.where(private, gradient, decayed)
    return gradient


def _loss(context, batch, frozen, key, params, batch_stats):
    """Returns the task's loss plus all methods' terms; also the new running statistics and every term by name."""
    task, options = context.model.task, dict(key=key, levels=context.algorithm.needs_levels)
    outputs, batch_stats = context.model.apply(Variables(params, batch_stats), batch, train=True, **options)

    def view(name):
        return LocalView(
            **context.view_fields(None if name == TASK else name),
            params=params, outputs=outputs, batch=batch, frozen=frozen.get(name, {}), key=method_key(key, name),
        )  # fmt: skip

    loss = _task_loss(context, view, outputs, batch)
    score = task.score(outputs, batch).astype(loss.dtype)
    metrics = {"task_loss": loss, task.metric: masked_mean(score, batch.mask)}
    for name, method in sorted(context.algorithm.having("penalty").items()):
        for term_name, term in method.penalty(view(name)).items():
            loss = loss + term.strength * term.value
            metrics[f"{name}/{term_name}"] = term.value
    return loss, (batch_stats, metrics)


def _task_loss(context, view, outputs, batch):
    for name, method in context.algorithm.having("task").items():
        return method.task(view(name))
    if context.training.task_loss is not None:
        return user_code.call_loss("training.task_loss", context.training.task_loss, view(TASK))
    return user_code.call_loss("loss of the task", context.model.task.loss, outputs, batch)
