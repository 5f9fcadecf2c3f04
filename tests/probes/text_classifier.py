"""A bag of words: token ids [length] to classes, 0 is padding."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import Federation, Model, Outputs


class BagOfWords(nn.Module):
    """The mean embedding of a text's words, and a linear classifier."""

    vocabulary: int
    num_classes: int

    @nn.compact
    def __call__(self, tokens, mask, train):
        is_word = tokens > 0
        embedded = nn.Embed(self.vocabulary, 16)(tokens) * is_word[..., None]
        features = embedded.sum(axis=1) / jnp.maximum(is_word.sum(axis=1), 1)[:, None]
        return Outputs(features, nn.Dense(self.num_classes, name="head")(features))


def federation(num_clients=5, length=12, vocabulary=40, seed=0):
    """Texts of two topics, each with words that are more frequent in it; and the model of their classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 300)
    favourites = rng.integers(1, vocabulary // 2, (300, length)) + labels[:, None] * (vocabulary // 2 - 1)
    tokens = np.where(rng.random((300, length)) < 0.6, favourites, rng.integers(0, vocabulary, (300, length)))
    parts = np.array_split(np.argsort(labels[:240] + rng.random(240)), num_clients)
    names = ("sports", "politics")
    data = Federation.from_inputs(tokens[:240], labels[:240], parts, tokens[240:], labels[240:], class_names=names)
    return data, Model(BagOfWords(vocabulary, 2), data.input_shape, input_dtype="int32")
