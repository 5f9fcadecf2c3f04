"""The transformer of pfl-research's benchmark for the next word of StackOverflow's posts."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.layers import Dense, LayerNorm, no_bias
from fedjax_collapse.nn.lowerings.sums import at_least_float32
from fedjax_collapse.nn.network import as_level, dropout
from fedjax_collapse.nn.places import rows_at, spread
from fedjax_collapse.nn.sequences import TokenNetwork, glorot_uniform
from fedjax_collapse.schema.options import Count, Fraction


class PflTransformer(TokenNetwork):
    """Embedding times sqrt(width) plus sinusoids, and post-norm blocks of causal self-attention and an MLP with ReLU.

        x = norm(x + attention(x)),   x = norm(x + mlp(x)),   logits = x . vectors of the ids

    pfl-research (Granqvist et al., NeurIPS 2024): 1,962,912 params for 10,000 words and four other ids. There is no
    norm after the last block and no bias of the logits. Later tokens are masked; padding is at the end and needs no
    mask. Initial weights are as in PyTorch's ``TransformerEncoderLayer``, but differ between blocks.

    Attributes:
        depth: number of blocks.
        heads: number of attention heads, a divisor of the width.
        mlp_width: width of the MLPs' hidden layer.
        dropout: rate of dropout: attention weights, both outputs and the hidden layer.
    """

    num_classes: int
    tied: bool = dataclasses.field(default=True, kw_only=True)
    depth: Count = 3
    heads: Count = 8
    mlp_width: Count = 1536
    dropout: Fraction = 0.1

    def represent(self, vectors: jax.Array, mask: jax.Array, train: bool, places: jax.Array | None) -> jax.Array:
        width, length = self.embedding, vectors.shape[1]
        if width % self.heads or width % 2:
            raise UserError(
                f"PflTransformer: embedding {width} with {self.heads} heads, expected an even multiple of these"
            )
        vectors = vectors * math.sqrt(width) + sinusoids(length, width).astype(vectors.dtype)
        tokens = rows_at(vectors.reshape(-1, width), places)
        options = len(vectors), length, self.heads, self.mlp_width, self.dropout, self.dtype, self.target
        for index in range(self.depth):
            tokens = as_level(self, CausalBlock(*options, name=f"block_{index}")(tokens, train, places))
        return tokens


class CausalBlock(nn.Module):
    """Self-attention of tokens on earlier tokens, and an MLP; each is added, then normalised.

    Tokens are rows [batch * length, width], because on CPUs the gradient of a product over two axes takes twice as
    long; or the rows at ``places``, with all earlier tokens of their sequences.
    """

    batch: int
    length: int
    heads: int
    mlp_width: int
    dropout: float
    dtype: str | None
    target: Target

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool, places: jax.Array | None) -> jax.Array:
        def dense(name, inputs, features, **inits):
            return Dense(features, **inits, dtype=self.dtype, target=self.target, name=name)(inputs)

        def drop(inputs):
            if places is None or not self.dropout or not train:
                return dropout(self, inputs, self.dropout, train)
            kept = dropout(self, jnp.ones((count, inputs.shape[1]), inputs.dtype), self.dropout, train)
            return inputs * rows_at(kept, places)  # the dropout of a token does not depend on the other tokens

        width, inits = tokens.shape[-1], dict(kernel_init=_of_three, bias_init=no_bias)
        query, key, value = (dense(name, tokens, width, **inits) for name in ("query", "key", "value"))
        split, count = (self.batch, self.length, self.heads, width // self.heads), self.batch * self.length
        query, key, value = (spread(part, places, count).reshape(split) for part in (query, key, value))
        weights = dropout(self, causal_weights(query, key).astype(value.dtype), self.dropout, train)
        attended = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(count, width)
        attended = rows_at(attended, places)
        tokens = LayerNorm(1e-5, name="norm_1")(tokens + drop(dense("out", attended, width, bias_init=no_bias)))
        hidden = drop(jax.nn.relu(dense("mlp_1", tokens, self.mlp_width)))
        return LayerNorm(1e-5, name="norm_2")(tokens + drop(dense("mlp_2", hidden, width)))


def causal_weights(query: jax.Array, key: jax.Array) -> jax.Array:
    """Returns weights [batch, heads, length, length], with which each token attends to itself and earlier tokens.

    Arguments are [batch, length, heads, d].
    """
    scores = at_least_float32(jnp.einsum("bqhd,bkhd->bhqk", query, key)) * query.shape[-1] ** -0.5
    return jax.nn.softmax(jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf), axis=-1)


def _of_three(fan_in, fan_out):
    """Returns PyTorch's initialiser of query, key and value, which are one matrix there."""
    return glorot_uniform(fan_in, 3 * fan_out)


def sinusoids(length: int, width: int) -> jax.Array:
    """Returns [length, width]: sin and cos, in turn, of the position over ``10000^(2 i / width)``."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return jnp.asarray(
        np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width), jnp.result_type(float)
    )
