"""Networks of sequences of token ids: embedding, LSTM, and a classifier that may share the weights of the embedding."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, UserError
from fedjax_collapse.nn.heads import classify
from fedjax_collapse.nn.layers import Init, cast, no_bias
from fedjax_collapse.nn.network import Network
from fedjax_collapse.schema.options import Count


def glorot_uniform(fan_in: int, fan_out: int) -> jax.nn.initializers.Initializer:
    """Keras' default initialiser of weights: uniform in +-sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return lambda key, shape, dtype=float: jax.random.uniform(key, shape, dtype, -bound, bound)


def he_normal(fan_in: int, fan_out: int) -> jax.nn.initializers.Initializer:
    """Keras' ``he_normal``: normal, truncated at two standard deviations, with variance 2 / fan_in."""
    return nn.initializers.he_normal()


class Embedding(nn.Module):
    """A vector for each id, initially uniform in +-0.05 as in Keras; ``part`` names a part of the network, if any."""

    vocabulary: int
    width: int
    dtype: str | None = None
    part: str | None = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the vectors [..., width] and the whole table [vocabulary, width]."""
        initializer = lambda key, shape: jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)  # noqa: E731
        table = self.param("table", initializer, (self.vocabulary, self.width))
        return cast(table, self.dtype)[tokens], table


class LSTM(nn.Module):
    """A layer of LSTM cells, [batch, length, in] to [batch, length, features], from a state of 0; as in Keras.

        i, f, o = sigmoid(...),  g = tanh(...) of  x W + h U + b;    c <- f c + i g,    h <- o tanh(c)

    Gates are in the order i, f, g, o. ``x W`` of all steps is one product. The recurrent kernel is orthogonal, the bias
    1 for f and else 0.
    """

    features: int
    kernel_init: Init = glorot_uniform
    dtype: str | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        width = inputs.shape[-1], 4 * self.features
        kernel = self.param("kernel", self.kernel_init(*width), width)
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (self.features, 4 * self.features))
        bias = self.param("bias", _forget_bias, (4 * self.features,))
        inputs, kernel, recurrent, bias = cast((inputs, kernel, recurrent, bias), self.dtype)
        return recur(inputs @ kernel + bias, recurrent)


@jax.custom_vjp
def recur(inputs: jax.Array, recurrent: jax.Array) -> jax.Array:
    """Returns the states of an LSTM, [batch, length, features], from its gates' inputs, [batch, length, 4 features].

    The gradient of ``recurrent`` is one product over all steps; JAX's would add a product in every step.

    Args:
        inputs: the gates' inputs without the state's contribution.
        recurrent: [features, 4 features].
    """
    return _forward(inputs, recurrent)[0]


def _cell(gates, memory):
    """Returns the new state and memory, given gates [batch, 4 features] before their nonlinearities."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


def _forward(inputs, recurrent):
    start = jnp.zeros((len(inputs), len(recurrent)), inputs.dtype)

    def step(carry, inputs):
        state, memory = carry
        gates = inputs + state @ recurrent
        return _cell(gates, memory), (state, gates, memory)

    (last, _), (states, gates, memories) = jax.lax.scan(step, (start, start), inputs.swapaxes(0, 1))
    after = jnp.concatenate([states[1:], last[None]]).swapaxes(0, 1)
    return after, (recurrent, states, gates, memories)


def _backward(kept, cotangents):
    """``kept``: the recurrent kernel, and from each step the state, the gates, and the memory before it."""
    recurrent, states, gates, memories = kept
    transposed = jax.lax.optimization_barrier(recurrent.T)  # once: as a part of the product, it is made in every step

    def step(carry, given):
        of_state, of_memory = carry
        cotangent, *before = given
        of_gates, of_memory = jax.vjp(_cell, *before)[1]((cotangent + of_state, of_memory))
        return (of_gates @ transposed, of_memory), of_gates

    start = jnp.zeros_like(states[0])
    _, of_gates = jax.lax.scan(step, (start, start), (cotangents.swapaxes(0, 1), gates, memories), reverse=True)
    return of_gates.swapaxes(0, 1), jnp.einsum("tbh,tbg->hg", states, of_gates)


recur.defvjp(_forward, _backward)


class TokenNetwork(Network, kw_only=True):
    """A network of sequences of ids. Subclasses define ``represent(vectors, mask, train, places)``.

    It maps embedded tokens [batch, length, embedding] to a row of features for each token, [batch * length, d], or for
    tokens at ``places`` if given (``Model``), or for each sequence, [batch, d].

    Attributes:
        vocabulary: number of input ids; None is the number of classes.
        embedding: width of the embedding.
        tied: whether logits are products of features and the embedding, without a bias; the part ``head`` is then the
            embedding.
    """

    vocabulary: Count | None = None
    embedding: Count = 96
    tied: bool = False

    needs_images = False
    head_init = staticmethod(glorot_uniform)
    head_bias_init = staticmethod(no_bias)

    @property
    def num_ids(self) -> int:
        """The number of ids that inputs may have."""
        return self.num_classes if self.tied else self.vocabulary or self.num_classes

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, train: bool, places: jax.Array | None = None) -> Outputs:
        self._check_tokens(tokens)
        embed = Embedding(self.num_ids, self.embedding, self.dtype, part="head" if self.tied else None)
        vectors, table = embed(tokens)
        features = self.projected(self.represent(vectors, mask, train, places), mask, train)
        if self.tied:
            return Outputs(features, features @ table.T)
        return Outputs(features, classify(self.head, features, self.num_classes, mask, train))

    def _check_tokens(self, tokens):
        self._check()
        name = type(self).__name__
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise UserError(
                f"{name}: its inputs are {tokens.dtype} of {tokens.ndim} axes, expected ids of tokens [batch, length], "
                'in Python Model(..., input_dtype="int32")'
            )
        if self.projector == "feduv":
            raise UserError(f"{name}: projector feduv has BatchNorm, which networks of tokens lack; choose another one")
        if self.tied and self.head != "linear":
            raise UserError(f"{name}: tied logits have no head of their own; set tied=False or leave out head")
        if self.tied and self.vocabulary not in (None, self.num_classes):
            raise UserError(
                f"{name}: tied, with {self.vocabulary} ids and {self.num_classes} classes; expected equal numbers"
            )


def _forget_bias(key, shape):
    return jnp.zeros(shape).at[shape[0] // 4 : shape[0] // 2].set(1)
