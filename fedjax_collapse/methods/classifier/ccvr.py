"""CCVR: retrain the head on virtual features drawn from Gaussians with the class moments of the clients' features.

    clients   n_c = number of examples of class c,   m_c = sum (f - a),   Q_c = sum (f - a)(f - a)^T
    server    mu_c = a + m_c / n_c,   S_c = (Q_c - m_c m_c^T / n_c) / (n_c - 1),   head <- SGD on f ~ N(mu_c, S_c)

with f the features of the server's new model in evaluation mode, on the training examples of the cohort or of all
clients. Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data"
(NeurIPS 2021), which has no official code. The sums determine exactly the means and unbiased covariances of the pooled
examples; third-party codes pass a variance as a standard deviation, weight clients equally, or take inner instead of
outer products. The shift ``a``, the features of an input of zeros (the mean image), is the same for all clients and
preserves single precision where features are far from 0. Samples of S_c use its matrix square root, in which negative
eigenvalues, caused by rounding, count as 0.

A class with one example has S_c = 0. A class without examples has no virtual features: its logit is excluded from the
training, and its part of the head does not change. All other classes get equally many virtual features. We do not know
how many the paper uses; 500 for 20 epochs are our choice, and third-party codes use 10 to 2000. ``clip`` sets negative
features to 0, for features after a ReLU.

``when="end"``: as published, CCVR does not affect training. The head that is evaluated after a round is calibrated as
if that round were the last; the server continues from the uncalibrated head. ``every_round``: the server continues from
the calibrated head.

``clients="cohort"``: the examples of the last round's cohort, so a class that none of its clients has is not
calibrated. ``all``: the examples of all clients, whether or not they were ever in a cohort or their uploads arrived.

Costs: in every round the cohort runs the new model once over its data (``all``: all clients do, before each
evaluation), and each client sends ``C (1 + d + d^2)`` numbers for C classes and d features. ``end`` stores one set of
them in the server's state: 105 MB for C = 100, d = 512. At every evaluation (``end``) or in every round the server
decomposes C matrices of size d x d, one after the other, and trains the head.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Batch, Key, Outputs, PyTree, UserError, Variables
from fedjax_collapse.data.batches import pad_to_batches, shuffled_rows
from fedjax_collapse.losses import cross_entropy
from fedjax_collapse.methods._linear_head import check_linear_head, head_of, with_head
from fedjax_collapse.methods.base import Exclusion, FinishView, Method, Setup
from fedjax_collapse.nn.model import Model
from fedjax_collapse.schema.options import Count, Decay, Positive, check_fields, option


class ClassSums(NamedTuple):
    """Sums over the examples of each class, of features minus the shift; summed over clients."""

    counts: jax.Array  # [classes]
    sums: jax.Array  # [classes, d]
    products: jax.Array  # [classes, d, d] outer products
    shift: jax.Array  # [d]; each client sends it times its weight
    seed: jax.Array | tuple = ()  # uint32, for the virtual features


class CCVR(Method):
    """Classifier calibration with virtual representations.

    Args:
        when: whether the server continues from the uncalibrated (``end``) or the calibrated head (``every_round``); the
            evaluated head is always calibrated.
        samples: number of virtual features per class.
        epochs: passes over the virtual features.
        batch_size: virtual features in a batch.
        learning_rate: learning rate of the head's SGD.
        momentum: momentum of the head's SGD.
        clip: whether negative virtual features are set to 0, for features after a ReLU.
        clients: clients whose features are measured: the last ``cohort``, whose missing classes stay uncalibrated, or
            ``all``, which needs ``when="end"``.
    """

    needs = ("classes",)
    not_sent = ("shared/*", "measured/shift")
    excludes = tuple(
        Exclusion((hook,), "{other} evaluates another model than the one that clients measure; leave one out", when)
        for hook, when in (("apply", "round"), ("evaluated", None))
    )

    when: str = option("end", choices=("end", "every_round"))
    samples: Count = option(500)
    epochs: Count = 20
    batch_size: Count = option(128)
    learning_rate: Positive = 0.01
    momentum: Decay = 0.9
    clip: bool = option(False)
    clients: str = option("cohort", choices=("cohort", "all"))

    def check(self) -> None:
        check_fields(self)
        if self.clients == "all" and self.when == "every_round":
            raise UserError("CCVR: clients 'all' report only before evaluations, not in 'every_round'; set when='end'")

    @property
    def when_measured(self) -> str:
        return "evaluation" if self.clients == "all" else "round"

    def check_with(self, setup: Setup) -> None:
        if setup.private != "none":
            raise UserError(f"CCVR: private {setup.private!r} makes features differ between clients; expected 'none'")
        check_linear_head("CCVR", setup.model)
        frozen = setup.training.frozen_part(at_server=True)
        if any(masks.select(setup.model.mask("head"), setup.model.mask(frozen)).values()):
            raise UserError(f"CCVR: training.freeze {setup.training.freeze!r} freezes the head that it trains")

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        if self.when == "every_round":
            return ()
        (_, classes), (_, dim), kind = shapes.logits.shape, shapes.features.shape, jnp.result_type(float)
        like = (classes,), (classes, dim), (classes, dim, dim), (dim,)
        return ClassSums(*(jnp.zeros(shape, kind) for shape in like), seed=jnp.zeros((), jnp.uint32))

    def measure(self, view: FinishView) -> ClassSums:
        return class_report(view)._replace(seed=jax.random.bits(view.key, dtype=jnp.uint32))

    def apply(self, variables: Variables, measured: ClassSums, model: Model) -> Variables:
        return _calibrated(self, model, variables, measured) if self.when == "every_round" else variables

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: ClassSums) -> PyTree:
        return measured if self.when == "end" else shared

    def evaluated(self, variables: Variables, shared: PyTree, model: Model) -> Variables:
        return _calibrated(self, model, variables, shared) if self.when == "end" else variables


_OUTER = "bc,bi,bj->cij"


def class_report(view: FinishView, products: str = _OUTER) -> ClassSums:
    """Returns the sums of a client's classes, by the model that it measures; ``products``: as in ``class_sums``."""
    inputs = jnp.zeros((1, *view.model.input_shape), view.model.input_dtype)
    zeros = Batch(inputs, jnp.zeros(1, jnp.int32), jnp.ones(1, bool))
    shift = view.model.apply(view.trained, zeros, train=False)[0].features[0]

    def summarize(outputs, batch):
        return class_sums(outputs.features - shift, batch, outputs.logits.shape[1], products)

    return ClassSums(*view.sum_over_data(view.trained, summarize), view.client.weight * shift)


def class_sums(
    features: jax.Array, batch: Batch, num_classes: int, products: str = _OUTER
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns counts [classes], sums [classes, d] and summed outer products [classes, d, d] of the true rows.

    ``products``: subscripts of the last sum, over one-hot labels, features and features.
    """
    features = jnp.where(batch.mask[:, None], features, 0).astype(jnp.result_type(float))
    is_of_class = jax.nn.one_hot(batch.labels, num_classes, dtype=features.dtype) * batch.mask[:, None]
    total = functools.partial(jnp.einsum, precision="highest")
    sums = total("bc,bi->ci", is_of_class, features)
    return jnp.sum(is_of_class, axis=0), sums, total(products, is_of_class, features, features)


def class_moments(total: ClassSums) -> tuple[jax.Array, jax.Array]:
    """Returns means [classes, d] and unbiased covariances [classes, d, d].

    The covariance of a single example is 0; the moments of a class without examples are meaningless.
    """
    counts = total.counts[:, None]
    means = total.sums / jnp.maximum(counts, 1)
    scatter = total.products - means[:, :, None] * total.sums[:, None, :]
    covariances = jnp.where(counts[:, None] > 1, scatter / jnp.maximum(counts[:, None] - 1, 1), 0)
    return total.shift + means, covariances


def virtual_features(key: Key, means: jax.Array, covariances: jax.Array, samples: int) -> jax.Array:
    """Draws ``samples`` vectors from the Gaussian of each class, [classes, samples, d]."""
    normal = jax.random.normal(key, (len(means), samples, means.shape[1]), means.dtype)
    return means[:, None] + normal @ jax.vmap(_square_root)(covariances)


@jax.custom_batching.sequential_vmap  # CPU devices that decompose batches at the same time deadlock
def _square_root(covariance):
    """The symmetric square root, independent of the signs of eigenvectors; negative eigenvalues count as 0."""
    values, vectors = jnp.linalg.eigh(covariance)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T


@functools.partial(jax.jit, static_argnames="model")
def _calibrated(method, model, variables, total):
    """Returns the variables with the head trained on virtual features."""
    key_features, key_order = jax.random.split(jax.random.key(total.seed))
    features = virtual_features(key_features, *class_moments(total), method.samples)
    if method.clip:
        features = jax.nn.relu(features)
    head = _train_head(method, head_of(variables, model), features, total.counts > 0, key_order)
    return with_head(variables, model, *head)


def _train_head(method, head, features, is_present, key):
    """Returns kernel and bias after SGD on the virtual features of the present classes, in shuffled minibatches."""
    batch_size, samples = method.batch_size, features.shape[1]
    features, labels = features.reshape(-1, features.shape[2]), jnp.repeat(jnp.arange(len(features)), samples)
    rows, size = jnp.argsort(~is_present[labels]), samples * jnp.sum(is_present)  # rows of absent classes are last
    optimizer = optax.sgd(method.learning_rate, method.momentum)

    def loss(head, rows, mask):
        kernel, bias = head
        logits = jnp.where(is_present, features[rows] @ kernel + bias, -1e30)
        return cross_entropy(logits, labels[rows], mask)

    def epoch(index, carry):
        order = pad_to_batches(shuffled_rows(jax.random.fold_in(key, index), rows, size), batch_size)

        def step(number, carry):
            head, state = carry
            first = number * batch_size
            batch = jax.lax.dynamic_slice_in_dim(order, first, batch_size)
            gradient = jax.grad(loss)(head, batch, first + jnp.arange(batch_size) < size)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(head, updates), state

        return jax.lax.fori_loop(0, -(-size // batch_size), step, carry)

    return jax.lax.fori_loop(0, method.epochs, epoch, (head, optimizer.init(head)))[0]
