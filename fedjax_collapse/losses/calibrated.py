"""Cross-entropies that know how many examples of each class a client has, for clients that lack some of them.

* Balanced softmax: Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition" (NeurIPS 2020); with a factor
  Menon et al., "Long-Tail Learning via Logit Adjustment" (ICLR 2021).

Counts are [classes], of all of a client's training examples, and constants. Only training sees the changed logits:
predictions are made from the plain ones.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from fedjax_collapse.losses.task import cross_entropy
from fedjax_collapse.records import Scalar, UserError

BALANCED_VACANT = ("exclude", "floor_one", "eps")
_ABSENT = -1e30  # a logit whose class has left the softmax; -inf would make gradients NaN


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
    nor does a row of such a class count; ``floor_one``: as if it had one example (FedETF's released code); ``eps``:
    all classes have ``log(n_c / sum n + 1e-9)`` instead (FedVLS's).

    Equal counts: plain cross-entropy. One class, or one that is not excluded: 0.

    Raises:
        UserError: unknown ``vacant``.
    """
    if vacant not in BALANCED_VACANT:
        raise UserError(f"balanced softmax vacant {vacant!r}: expected one of {', '.join(BALANCED_VACANT)}")
    counts = counts.astype(logits.dtype)
    if vacant == "eps":
        prior = jnp.log(counts / jnp.maximum(jnp.sum(counts), 1) + 1e-9)
    else:
        prior = jnp.log(jnp.maximum(counts, 1))
    kept = counts > 0 if vacant == "exclude" else jnp.ones_like(counts, bool)
    return _cross_entropy_over(kept, logits + tau * prior[None], labels, mask)


def _cross_entropy_over(kept, logits, labels, mask):
    """Cross-entropy of the softmax over the classes that are kept, of the rows of such a class."""
    return cross_entropy(jnp.where(kept[None], logits, _ABSENT), labels, mask & kept[labels])
