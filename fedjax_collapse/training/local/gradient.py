"""The gradient of one local step: of the task's loss plus all methods' terms, with the methods' corrections."""

import jax
import jax.numpy as jnp

from fedjax_collapse.core import masks
from fedjax_collapse.core.randomness import TASK, method_key
from fedjax_collapse.core.records import Batch, Key, Outputs, PyTree, Variables
from fedjax_collapse.losses import masked_mean
from fedjax_collapse.methods.base import GradientView, LocalView, RoundView, check_returned
from fedjax_collapse.schema import user_code
from fedjax_collapse.training.local.context import LocalContext

FrozenOutputs = dict[str, dict[str, Outputs]]  # by method, then by the method's name for the model


def frozen_outputs(context: LocalContext, batch: Batch) -> FrozenOutputs:
    """Returns the outputs of the frozen models of each method that has some."""
    server, memory, outputs = context.server, context.client.state.memory, {}
    for name, method in context.algorithm.having("frozen").items():
        models = method.frozen(server.variables, server.shared[name], memory[name])
        outputs[name] = {key: context.model.apply(model, batch, train=False)[0] for key, model in models.items()}
    return outputs


def gradient_and_metrics(
    context: LocalContext, variables: Variables, batch: Batch, frozen: FrozenOutputs, key: Key, not_trained: PyTree
) -> tuple[PyTree, PyTree, dict[str, jax.Array], dict[str, PyTree]]:
    """Returns a batch's gradient, running statistics, parts of the loss by name, and the methods' next carries.

    Args:
        context: the client's round.
        variables: the current model.
        batch: the batch.
        frozen: the outputs of frozen models on the batch.
        key: of this step.
        not_trained: the mask of the params that are not trained.
    """
    passes = []

    def gradient_of(params, mask=None):
        rows = batch if mask is None else batch._replace(mask=batch.mask & mask)

        def loss(trained):
            return _loss(context, rows, frozen, key, masks.fill(trained, params), variables.batch_stats)

        gradient, outcome = jax.grad(loss, has_aux=True)(masks.without(not_trained, params))
        passes.append(outcome)
        return masks.fill(gradient, jax.tree.map(jnp.zeros_like, params))

    for name, method in context.algorithm.having("gradient").items():
        held = masks.union(not_trained, context.model.mask(context.algorithm.private_part).params)
        rate = context.training.learning_rate_in(context.round)
        view = GradientView(**context.view_fields(name), held=held, fixed=not_trained, batch=batch, learning_rate=rate)
        gradient, carries = method.gradient(gradient_of, variables.params, view), {}
        if method.has("init_carry") and not method.has("carry"):
            gradient, new = gradient
            carries[name] = check_returned(name, "gradient", new, view.carry)
        gradient = check_returned(name, "gradient", gradient, variables.params)
        batch_stats, metrics, of_pass = passes[0]
        return gradient, batch_stats, metrics, {**of_pass, **carries}
    return gradient_of(variables.params), *passes[0]


def correct(context: LocalContext, gradient: PyTree, params: PyTree, not_trained: PyTree) -> PyTree:
    """Returns the optimizer's gradient: corrected by the methods, clipped, then decayed by the methods.

    Params that are not trained do not count in the norm, and the client's private params are not corrected.
    """
    private = context.model.mask(context.algorithm.private_part).params
    for name, method in context.algorithm.having("correct").items():
        corrected = method.correct(gradient, params, RoundView(**context.view_fields(name)))
        corrected = check_returned(name, "correct", corrected, params)
        gradient = masks.where(private, gradient, corrected)
    gradient = context.training.clip(gradient, not_trained)
    for name, method in context.algorithm.having("decay").items():
        strength = method.decay(RoundView(**context.view_fields(name)))
        decayed = jax.tree.map(lambda g, w, strength=strength: g + strength * w, gradient, params)
        gradient = masks.where(private, gradient, decayed)
    return gradient


def _loss(context, batch, frozen, key, params, batch_stats):
    """Returns the loss with all methods' terms; also running statistics, terms by name, and next carries."""
    task, levels = context.model.task, any("levels" in method.needs for method in context.algorithm.methods.values())
    variables = Variables(params, batch_stats)
    outputs, batch_stats = context.model.apply(variables, batch, train=True, key=key, levels=levels)

    def view(name):
        return LocalView(
            **context.view_fields(None if name == TASK else name),
            params=params, outputs=outputs, batch=batch, frozen=frozen.get(name, {}), key=method_key(key, name),
        )  # fmt: skip

    loss = _task_loss(context, view, outputs, batch)
    score = task.score(outputs, batch).astype(loss.dtype)
    metrics = {"task_loss": loss, task.metric: masked_mean(score, task.weights(batch))}
    for name, method in sorted(context.algorithm.having("penalty").items()):
        for term_name, term in method.penalty(view(name)).items():
            loss = loss + term.strength * term.value
            metrics[f"{name}/{term_name}"] = term.value
    carries = dict(context.carries)
    for name, method in context.algorithm.having("carry").items():
        carries[name] = check_returned(name, "carry", method.carry(view(name)), carries[name])
    return loss, (batch_stats, metrics, carries)


def _task_loss(context, view, outputs, batch):
    for name, method in context.algorithm.having("task").items():
        return method.task(view(name))
    if context.training.task_loss is not None:
        return user_code.call_loss("training.task_loss", context.training.task_loss, view(TASK))
    return user_code.call_loss("loss of the task", context.model.task.loss, outputs, batch)
