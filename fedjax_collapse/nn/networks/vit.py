"""Vision transformers (ViT): Ti, S and B, and small ones for images of 28 or 32 pixels."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.layers import Dense, LayerNorm, PatchEmbedding, no_bias
from fedjax_collapse.nn.lowerings.sums import at_least_float32
from fedjax_collapse.nn.network import Network, as_level, rematerialized
from fedjax_collapse.schema.options import Count, Positive

SIZES = {  # width, blocks, heads; MLPs are four times as wide
    "micro": (64, 4, 4),
    "mini": (128, 6, 4),
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
}


class ViT(Network):
    """Patches plus positions, pre-norm blocks of self-attention and an MLP, LayerNorm, and the class token.

        x = [token; patches] + positions,   x += attention(norm(x)),   x += mlp(norm(x)),   features = norm(x)[0]

    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), without dropout. B/16 is
    ``size="B", patch=16`` for images of 224x224. Initial weights are timm's: N(0, 0.02) and biases of 0, but PyTorch's
    default for the patches and, unlike timm, for the classifier. ``pretrained.py`` loads weights from a file. The last
    block computes only the class token, if no other token is read.

    Attributes:
        size: width, depth and heads, unless they are given.
        patch: height and width of a patch in pixels, a divisor of the image's.
        width: entries of a token.
        depth: number of blocks.
        heads: number of attention heads, a divisor of the width.
        mlp_width: width of the MLPs' hidden layer; None is four times the width.
        pool: features after the last LayerNorm: of the class token, or the mean over patches without a class token, as
            in big_vision.
        epsilon: of LayerNorm; 1e-12 in Hugging Face's ViT.
        gelu: ``erf``, or its approximation ``tanh``, as in the JAX codes.
        remat: whether the gradient recomputes activations: less memory, more time.
    """

    num_classes: int
    size: Annotated[str, tuple(SIZES)] = "mini"
    patch: Count = 4
    width: Count | None = None
    depth: Count | None = None
    heads: Count | None = None
    mlp_width: Count | None = None
    pool: Annotated[str, ("token", "mean")] = "token"
    epsilon: Positive = 1e-6
    gelu: Annotated[str, ("erf", "tanh")] = "erf"
    remat: bool = False

    @property
    def smallest_image(self) -> int:
        return self.patch

    def dimensions(self) -> tuple[int, int, int, int]:
        """Returns width, depth, heads, and the width of the MLPs."""
        given = self.width, self.depth, self.heads
        width, depth, heads = (own or of_size for own, of_size in zip(given, SIZES[self.size], strict=True))
        if width % heads:
            raise UserError(f"ViT: width {width} with {heads} heads, expected a multiple of the number of heads")
        return width, depth, heads, self.mlp_width or 4 * width

    def represent(self, images: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        width, depth, heads, mlp_width = self.dimensions()
        has_token, block = self.pool == "token", rematerialized(Block, self.remat)
        tokens = PatchEmbedding(width, self.patch, self.dtype, self.target, name="patches")(images)
        if has_token:
            token = self.param("token", nn.initializers.normal(1e-6), (width,))
            token = jnp.broadcast_to(token.astype(tokens.dtype), (len(tokens), 1, width))
            tokens = jnp.concatenate([token, tokens], axis=1)
        positions = self.param("positions", nn.initializers.normal(0.02), tokens.shape[1:])
        tokens = tokens + positions.astype(tokens.dtype)
        options = heads, mlp_width, self.epsilon, self.gelu, self.dtype, self.target
        for index in range(depth):
            read = 1 if has_token and index == depth - 1 else None
            tokens = block(*options, read, name=f"block_{index}")(tokens, mask, train)
            as_level(self, tokens[:, 0] if has_token else tokens)
        tokens = LayerNorm(self.epsilon, name="norm")(tokens)
        return tokens[:, 0] if has_token else at_least_float32(tokens).mean(axis=1)


class Block(nn.Module):
    """Multi-head self-attention, then an MLP with one hidden layer; each is applied to normalised tokens, then added.

    Tokens are [batch, tokens, width]. All weights are matrices [in, out]; of the attention, [width, width]. ``read``:
    the number of first tokens to compute; None for all.
    """

    heads: int
    mlp_width: int
    epsilon: float
    gelu: str
    dtype: str | None
    target: Target
    read: int | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, train: bool) -> jax.Array:

        def dense(name, inputs, features):
            inits = dict(kernel_init=_normal, bias_init=no_bias)
            return Dense(features, **inits, dtype=self.dtype, target=self.target, name=name)(inputs)

        width, read = tokens.shape[-1], slice(self.read)
        inputs = LayerNorm(self.epsilon, name="norm_1")(tokens)
        query = dense("query", inputs[:, read], width)
        key, value = (dense(name, inputs, width) for name in ("key", "value"))
        tokens = tokens[:, read] + dense("out", attention(query, key, value, self.heads), width)
        hidden = dense("mlp_1", LayerNorm(self.epsilon, name="norm_2")(tokens), self.mlp_width)
        return tokens + dense("mlp_2", jax.nn.gelu(hidden, approximate=self.gelu == "tanh"), width)


def attention(query: jax.Array, key: jax.Array, value: jax.Array, heads: int) -> jax.Array:
    """Returns values [batch, queries, width], averaged with weights softmax(query . key / sqrt(width / heads)).

    Queries are [batch, queries, width], keys and values [batch, tokens, width].
    """
    query, key, value = (part.reshape(*part.shape[:2], heads, -1) for part in (query, key, value))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(at_least_float32(scores), axis=-1).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*query.shape[:2], -1)


def _normal(fan_in, fan_out):
    return nn.initializers.normal(0.02)
