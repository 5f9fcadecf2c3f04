"""Distillation from a teacher on classes other than a row's label, or on classes that a client lacks.

* FedNTD: Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning" (NeurIPS
  2022).
* FedVLS: Guo et al., "Exploring Vacant Classes in Label-Skewed Federated Learning" (AAAI 2025), with its logit
  suppression.

The teacher's logits are constants. For a distribution over one class or none, value and gradient are exactly 0.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Scalar, check_choice
from fedjax_collapse.losses.calibrated import ABSENT
from fedjax_collapse.losses.shapes import Counts, Labels, Logits, Mask, Value
from fedjax_collapse.losses.task_loss import masked_mean

SUPPRESSIONS = ("official", "paper")


def not_true_distillation(
    logits: Logits, teacher_logits: Logits, labels: Labels, mask: Mask, temperature: Scalar = 1.0
) -> Value:
    """Returns FedNTD's term: ``t^2 KL(teacher || student)`` of the softmax over all classes but the row's label.

    Logits are divided by the ``temperature`` t. Mean over the true rows, in nats. The gradient on the label's logit is
    exactly 0.
    """
    chosen = jnp.arange(logits.shape[1])[None] != labels[:, None]
    divergences = _divergences(teacher_logits / temperature, logits / temperature, chosen & mask[:, None])
    return temperature**2 * masked_mean(divergences, mask)


def vacant_distillation(logits: Logits, teacher_logits: Logits, mask: Mask, counts: Counts) -> Value:
    """Returns FedVLS's term: ``KL(teacher || student)`` of the softmax over the classes that the client lacks.

    Mean over the true rows, in nats; ``counts`` are the client's. In the paper's eq. 3 the ratio is inverted, in the
    released code not. 0 if the client lacks fewer than two classes.
    """
    chosen = (counts == 0)[None] & mask[:, None]
    return masked_mean(_divergences(teacher_logits, logits, chosen), mask)


def logit_suppression(logits: Logits, labels: Labels, mask: Mask, counts: Counts, variant: str = "official") -> Value:
    """Returns FedVLS's logit suppression: lower the logit of each class on rows of other classes.

    With ``p_c = n_c / sum n`` of the client's ``counts`` and means over the N true rows:

    * ``official`` (released code): ``0.005 sum_c p_c log mean_n exp([y_n != c] (f_nc - log(p_c + 1e-9) + log(1 / C +
      1e-9)))``. Rows of class c contribute ``exp(0)``, a lower bound that the paper's formula lacks;
    * ``paper``: ``sum_c p_c log mean_n [y_n != c] exp(f_nc)``, unbounded below. A class to which all rows belong has no
      term.

    Raises:
        UserError: if ``variant`` is unknown.
    """
    check_choice("fedvls variant", variant, SUPPRESSIONS)
    shares = counts.astype(logits.dtype) / jnp.maximum(jnp.sum(counts), 1)
    is_other = jnp.arange(len(shares))[None] != labels[:, None]
    if variant == "official":
        offsets = math.log(1 / len(shares) + 1e-9) - jnp.log(shares + 1e-9)
        exponents, chosen, scale = jnp.where(is_other, logits + offsets[None], 0), mask[:, None], 0.005
    else:
        exponents, chosen, scale = logits, is_other & mask[:, None], 1.0
    sums = jax.nn.logsumexp(jnp.where(chosen, exponents, ABSENT), axis=0)
    means = sums - jnp.log(jnp.maximum(jnp.sum(mask), 1).astype(logits.dtype))
    return scale * jnp.sum(jnp.where(jnp.any(chosen, axis=0) & (shares > 0), shares * means, 0))


def _divergences(teacher, student, chosen):
    """Returns the KL divergence [batch] of the softmaxes over the ``chosen`` classes [batch, classes]."""
    teacher, student = (jnp.where(chosen, logits, ABSENT) for logits in (jax.lax.stop_gradient(teacher), student))
    teacher, student = jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)
    return jnp.sum(jnp.where(chosen, jnp.exp(teacher) * (teacher - student), 0), axis=1)
