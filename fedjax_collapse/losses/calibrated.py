"""Cross-entropies that know how many examples of each class a client has, for clients that lack some of them.

* Balanced softmax: Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition" (NeurIPS 2020); with a factor
  Menon et al., "Long-Tail Learning via Logit Adjustment" (ICLR 2021).
* FedLC: Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration" (ICML 2022).
* FedRS: Li & Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data" (KDD 2021).

Counts are [classes], of all of a client's training examples, and constants. Only training sees the changed logits:
predictions are made from the plain ones.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from fedjax_collapse.core.records import Scalar, UserError
from fedjax_collapse.losses.task_loss import cross_entropy, masked_mean

BALANCED_VACANT = ("exclude", "floor_one", "eps")
CALIBRATED_VACANT = ("exclude", "floor")
DENOMINATORS = ("all", "others")
SCALES = ("binary", "continuous")
ABSENT = -1e30  # a logit whose class has left the softmax; -inf would make gradients NaN


def balanced_cross_entropy(
    logits: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    counts: Num[Array, " classes"],
    tau: Scalar = 1.0,
    vacant: str = "exclude",
) -> Float[Array, ""]:
    """Cross-entropy of ``logits + tau log n_c``, mean over the true rows, in nats; the ``counts`` are n_c.

    ``vacant``: what becomes of a class with n_c = 0. ``exclude``: it leaves the softmax and gets exactly no gradient,
    and a row of such a class does not count; ``floor_one``: as if it had one example (FedETF's released code); ``eps``:
    all classes have ``log(n_c / sum n + 1e-9)`` instead (FedVLS's).

    Equal counts: plain cross-entropy. A single class in the softmax: 0, and so is the gradient.

    Raises:
        UserError: unknown ``vacant``.
    """
    _check("balanced softmax vacant", vacant, BALANCED_VACANT)
    counts, kept = _counted(counts, vacant, logits.dtype)
    if vacant == "eps":
        prior = jnp.log(counts / jnp.maximum(jnp.sum(counts), 1) + 1e-9)
    else:
        prior = jnp.log(jnp.where(counts > 0, counts, 1))
    return _cross_entropy_over(kept, logits + tau * prior[None], labels, mask)


def calibrated_cross_entropy(
    logits: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    counts: Num[Array, " classes"],
    tau: Scalar = 0.5,
    denominator: str = "all",
    vacant: str = "exclude",
) -> Float[Array, ""]:
    """FedLC's cross-entropy of ``s_c = logits - tau n_c^(-1/4)``, mean over the true rows, in nats.

    ``denominator``: the softmax is over ``all`` classes (released codes), or over the ``others`` than the row's own
    (the paper): ``log sum_{c != y} exp(s_c) - s_y``, which has no lower bound, and 0 where there is no other class.
    ``vacant``: what becomes of a class with n_c = 0. ``exclude``: it leaves the softmax and gets exactly no gradient,
    and a row of such a class does not count; ``floor``: n_c is at least 1e-8, so its margin is 100 tau.

    Raises:
        UserError: unknown ``denominator`` or ``vacant``.
    """
    _check("fedlc denominator", denominator, DENOMINATORS)
    _check("fedlc vacant", vacant, CALIBRATED_VACANT)
    counts, kept = _counted(counts, vacant, logits.dtype)
    counts = jnp.where(kept, jnp.maximum(counts, 1e-8), 1)
    shifted = logits - tau * counts[None] ** -0.25
    if denominator == "all":
        return _cross_entropy_over(kept, shifted, labels, mask)
    is_own = jnp.arange(len(counts))[None] == labels[:, None]
    shifted = jnp.where(mask[:, None], shifted, 0)
    others = kept[None] & ~is_own
    own = jnp.sum(jnp.where(is_own, shifted, 0), axis=1)
    losses = jax.nn.logsumexp(jnp.where(others, shifted, ABSENT), axis=1) - own
    return masked_mean(losses, mask & kept[labels] & jnp.any(others, axis=1))


def restricted_cross_entropy(
    logits: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    mask: Bool[Array, " batch"],
    counts: Num[Array, " classes"],
    alpha: Scalar = 0.5,
    scale: str = "binary",
) -> Float[Array, ""]:
    """FedRS's cross-entropy of ``r_c logits``, mean over the true rows, in nats.

    ``scale``: with ``binary``, ``r_c`` is 1 for a class with n_c > 0, else ``alpha``; with ``continuous`` (the authors'
    code) ``alpha + (1 - alpha) n_c / max n``. ``alpha = 1`` is plain cross-entropy.

    Raises:
        UserError: unknown ``scale``.
    """
    _check("fedrs scale", scale, SCALES)
    counts = counts.astype(logits.dtype)
    if scale == "binary":
        scales = jnp.where(counts > 0, 1, alpha)
    else:
        scales = alpha + (1 - alpha) * counts / jnp.maximum(jnp.max(counts), 1)
    return cross_entropy(scales[None] * logits, labels, mask)


def _check(what, value, choices):
    if value not in choices:
        raise UserError(f"{what} {value!r}: expected one of {', '.join(choices)}")


def _counted(counts, vacant, dtype):
    """The counts as floats, and which classes stay in the softmax."""
    counts = counts.astype(dtype)
    return counts, counts > 0 if vacant == "exclude" else jnp.ones_like(counts, bool)


def _cross_entropy_over(kept, logits, labels, mask):
    """Cross-entropy of the softmax over the classes that are kept, of the rows of such a class."""
    return cross_entropy(jnp.where(kept[None], logits, ABSENT), labels, mask & kept[labels])
