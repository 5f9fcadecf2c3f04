"""The LSTM of TensorFlow Federated for the next word of StackOverflow's posts."""

import jax

from fedjax_collapse.nn.layers import Dense, no_bias
from fedjax_collapse.nn.network import as_level
from fedjax_collapse.nn.places import rows_at
from fedjax_collapse.nn.sequences import LSTM, TokenNetwork, glorot_uniform
from fedjax_collapse.schema.options import Count


class StackOverflowLSTM(TokenNetwork):
    """Embedding, LSTM, a dense layer of the embedding's width without nonlinearity, and the classifier.

    Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), appendix C: 4,050,748 params for 10,000 words and four
    other ids, 3,080,360 if ``tied``. Initial weights are Keras'. The features are the outputs of the dense layer.

    Attributes:
        hidden: number of cells of each LSTM.
        layers: number of LSTMs, each followed by a dense layer.
    """

    num_classes: int
    hidden: Count = 670
    layers: Count = 1

    def represent(self, vectors: jax.Array, mask: jax.Array, train: bool, places: jax.Array | None) -> jax.Array:
        for _ in range(self.layers):
            states = LSTM(self.hidden, dtype=self.dtype)(vectors)
            vectors = Dense(self.embedding, kernel_init=glorot_uniform, bias_init=no_bias, dtype=self.dtype)(states)
            features = as_level(self, rows_at(vectors.reshape(-1, self.embedding), places))
        return features
