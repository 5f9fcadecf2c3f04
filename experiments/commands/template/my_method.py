"""FeatureNorm: keep the features of every local batch short. ``penalty`` is written for one batch of one client."""

import jax.numpy as jnp

from fedjax_collapse import Regularizer, Term, masked_mean


class FeatureNorm(Regularizer):
    """The squared length of the features, mean over the batch.

    Args:
        strength: factor of the term.
    """

    strength: float = 0.01

    def penalty(self, view):
        squares = jnp.sum(view.outputs.features**2, axis=1)
        return {"norm": Term(self.strength, masked_mean(squares, view.batch.mask))}
