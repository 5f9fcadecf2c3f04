"""The LSTM of TensorFlow Federated and LEAF for the next character of Shakespeare's plays."""

import dataclasses
from typing import Annotated

import jax

from fedjax_collapse.nn.network import as_level
from fedjax_collapse.nn.places import rows_at
from fedjax_collapse.nn.sequences import LSTM, TokenNetwork, he_normal
from fedjax_collapse.schema.options import Count


class ShakespeareLSTM(TokenNetwork):
    """Embedding, two LSTMs and the classifier.

    Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), appendix C: 820,522 params for 90 ids, one of them
    padding. LEAF's network has ``predicts="last"``, 80 ids and 817,872 params: it classifies the character after the
    sequence. Initial weights are Keras', but TFF's ``he_normal`` for the kernels of the LSTMs. The features are the
    states of the last LSTM.

    Attributes:
        hidden: number of cells of each LSTM.
        layers: number of LSTMs.
        predicts: a prediction after ``every`` token, or only after the ``last``.
    """

    num_classes: int
    embedding: Count = dataclasses.field(default=8, kw_only=True)
    hidden: Count = 256
    layers: Count = 2
    predicts: Annotated[str, ("every", "last")] = "every"

    def represent(self, vectors: jax.Array, mask: jax.Array, train: bool, places: jax.Array | None) -> jax.Array:
        for _ in range(self.layers):
            vectors = LSTM(self.hidden, he_normal, self.dtype)(vectors)
            every = rows_at(vectors.reshape(-1, self.hidden), places)
            features = as_level(self, vectors[:, -1] if self.predicts == "last" else every)
        return features
