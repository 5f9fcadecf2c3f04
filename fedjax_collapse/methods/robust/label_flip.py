"""Label flipping: malicious clients train on wrong labels.

    y -> C - 1 - y,   C classes

Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning" (USENIX Security 2020). Everything
that a malicious client computes from its training examples has the wrong labels, also its class counts.
"""

import jax.numpy as jnp

from fedjax_collapse.core.records import Batch
from fedjax_collapse.methods.base import RoundView
from fedjax_collapse.methods.robust._attacks import Attack


class LabelFlip(Attack):
    """Training on flipped labels."""

    needs = ("classes",)

    def batch(self, batch: Batch, view: RoundView) -> Batch:
        last = view.model.initial_shapes().logits.shape[-1] - 1
        return batch._replace(labels=jnp.where(self.is_own(view), last - batch.labels, batch.labels))
