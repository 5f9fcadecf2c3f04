"""Cross-entropies that depend on a client's class counts, for clients that lack some of the classes.

* Balanced softmax: Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition" (NeurIPS 2020); with a factor
  Menon et al., "Long-Tail Learning via Logit Adjustment" (ICLR 2021).
* FedLC: Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration" (ICML 2022).
* FedRS: Li & Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data" (KDD 2021).

Counts [classes] are over all of a client's training examples, and constants. Only training uses the modified logits;
predictions use the plain ones.
"""

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar, check_choice
from fedjax_collapse.losses.shapes import Counts, Labels, Logits, Mask, Value
from fedjax_collapse.losses.task_loss import cross_entropy, masked_mean

BALANCED_VACANT = ("exclude", "floor_one", "eps")
CALIBRATED_VACANT = ("exclude", "floor")
DENOMINATORS = ("all", "others")
SCALES = ("binary", "continuous")
ABSENT = -1e30  # the logit of a class excluded from the softmax; -inf would make gradients NaN


def balanced_cross_entropy(
    logits: Logits, labels: Labels, mask: Mask, counts: Counts, tau: Scalar = 1.0, vacant: str = "exclude"
) -> Value:
    """Returns the cross-entropy of ``logits + tau log n_c``, mean over the true rows, in nats; n_c are the ``counts``.

    With equal counts it is plain cross-entropy. With a single class in the softmax, loss and gradient are 0.

    Args:
        vacant: treatment of a class with n_c = 0. ``exclude``: the softmax leaves it out, its gradient is exactly 0,
            and its rows do not count; ``floor_one``: as if it had one example (FedETF's released code); ``eps``:
            ``log(n_c / sum n + 1e-9)`` replaces ``log n_c`` for all classes (FedVLS's).

    Raises:
        UserError: if ``vacant`` is unknown.
    """
    check_choice("balanced softmax vacant", vacant, BALANCED_VACANT)
    counts, included = _prepare_counts(counts, vacant, logits.dtype)
    if vacant == "eps":
        prior = jnp.log(counts / jnp.maximum(jnp.sum(counts), 1) + 1e-9)
    else:
        prior = jnp.log(jnp.where(counts > 0, counts, 1))
    return _cross_entropy_over(included, logits + tau * prior[None], labels, mask)


def calibrated_cross_entropy(
    logits: Logits,
    labels: Labels,
    mask: Mask,
    counts: Counts,
    tau: Scalar = 0.5,
    denominator: str = "all",
    vacant: str = "exclude",
) -> Value:
    """Returns FedLC's cross-entropy of ``s_c = logits - tau n_c^(-1/4)``, mean over the true rows, in nats.

    Args:
        denominator: the softmax is over ``all`` classes (released codes), or over the ``others``, all but the row's
            label (the paper): ``log sum_{c != y} exp(s_c) - s_y``, which has no lower bound; 0 without other classes.
        vacant: treatment of a class with n_c = 0. ``exclude``: the softmax leaves it out, its gradient is exactly 0,
            and its rows do not count; ``floor``: n_c is at least 1e-8, so its margin is 100 tau.

    Raises:
        UserError: if ``denominator`` or ``vacant`` is unknown.
    """
    check_choice("fedlc denominator", denominator, DENOMINATORS)
    check_choice("fedlc vacant", vacant, CALIBRATED_VACANT)
    counts, included = _prepare_counts(counts, vacant, logits.dtype)
    counts = jnp.where(included, jnp.maximum(counts, 1e-8), 1)
    shifted = logits - tau * counts[None] ** -0.25
    if denominator == "all":
        return _cross_entropy_over(included, shifted, labels, mask)
    is_own = jnp.arange(len(counts))[None] == labels[:, None]
    shifted = jnp.where(mask[:, None], shifted, 0)
    others = included[None] & ~is_own
    own = jnp.sum(jnp.where(is_own, shifted, 0), axis=1)
    losses = jax.nn.logsumexp(jnp.where(others, shifted, ABSENT), axis=1) - own
    return masked_mean(losses, mask & included[labels] & jnp.any(others, axis=1))


def restricted_cross_entropy(
    logits: Logits, labels: Labels, mask: Mask, counts: Counts, alpha: Scalar = 0.5, scale: str = "binary"
) -> Value:
    """Returns FedRS's cross-entropy of ``r_c logits``, mean over the true rows, in nats.

    ``alpha = 1`` is plain cross-entropy.

    Args:
        scale: with ``binary``, ``r_c`` is 1 for a class with n_c > 0, else ``alpha``; with ``continuous`` (the authors'
            code) it is ``alpha + (1 - alpha) n_c / max n``.

    Raises:
        UserError: if ``scale`` is unknown.
    """
    check_choice("fedrs scale", scale, SCALES)
    counts = counts.astype(logits.dtype)
    if scale == "binary":
        scales = jnp.where(counts > 0, 1, alpha)
    else:
        scales = alpha + (1 - alpha) * counts / jnp.maximum(jnp.max(counts), 1)
    return cross_entropy(scales[None] * logits, labels, mask)


def _prepare_counts(counts, vacant, dtype):
    """Returns the counts as floats, and a mask of the classes that stay in the softmax."""
    counts = counts.astype(dtype)
    return counts, counts > 0 if vacant == "exclude" else jnp.ones_like(counts, bool)


def _cross_entropy_over(included, logits, labels, mask):
    """Returns the cross-entropy of the softmax over the included classes, mean over the rows of these classes."""
    return cross_entropy(jnp.where(included[None], logits, ABSENT), labels, mask & included[labels])
