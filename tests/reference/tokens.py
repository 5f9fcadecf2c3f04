"""Networks of sequences in PyTorch layers, sentences of a Markov chain, and whole rounds on them."""

from types import SimpleNamespace

import jax
import numpy as np
import torch

from fedjax_collapse import Federation
from fedjax_collapse.nn.interchange.torch_networks import Transformer
from reference.networks import TorchNetwork, of_linear
from reference.regularizers import PlainFedDecorr
from reference.rounds import PlainFedAvg, Rounds


class TorchTokens(TorchNetwork):
    """Ids [batch, length] to features and logits of every token; layers are named as in the library."""

    norms = ()

    @classmethod
    def of(cls, variables, **options):
        """With these variables of the library."""
        dtype = torch.tensor(np.array(jax.tree.leaves(variables)[0])).dtype
        return cls(jax.tree.map(np.shape, variables.params), **options).to(dtype).load(variables)

    def forward(self, tokens):
        features = self.represent(tokens)
        logits = features @ self.table.T if self.head is None else self.head(features)
        return features.flatten(0, -2), logits.flatten(0, -2)


def linear(shapes):
    return torch.nn.Linear(*shapes["kernel"])


class TorchLSTM(TorchTokens):
    """Both LSTM networks: after each LSTM a dense layer, or none; biases are weights of an input that is 1."""

    def __init__(self, shapes, layers, has_dense, is_tied=False, only_last=False):
        super().__init__()
        self.table, self.only_last = torch.nn.Parameter(torch.zeros(shapes["Embedding_0"]["table"])), only_last
        self.lstms, self.dense = torch.nn.ModuleList(), torch.nn.ModuleList()
        for i in range(layers):
            inputs, gates = shapes[f"LSTM_{i}"]["kernel"]
            self.lstms.append(torch.nn.LSTM(inputs + 1, gates // 4, bias=False, batch_first=True))
            self.dense.append(linear(shapes[f"Dense_{i}"]) if has_dense else torch.nn.Identity())
        self.head = None if is_tied else linear(shapes[f"Dense_{layers * has_dense}"])

    def represent(self, tokens):
        vectors = torch.nn.functional.embedding(tokens, self.table)
        for lstm, dense in zip(self.lstms, self.dense, strict=True):
            states, _ = lstm(torch.cat([vectors, torch.ones_like(vectors[..., :1])], -1))
            vectors = dense(states)
        return vectors[:, -1] if self.only_last else vectors

    def leaves(self, of=lambda tensor: tensor):
        found = {"Embedding_0/table": of(self.table)}
        for i, (lstm, dense) in enumerate(zip(self.lstms, self.dense, strict=True)):
            inputs = of(lstm.weight_ih_l0)
            found |= {f"LSTM_{i}/kernel": inputs[:, :-1].T, f"LSTM_{i}/bias": inputs[:, -1]}
            found[f"LSTM_{i}/recurrent"] = of(lstm.weight_hh_l0).T
            found |= of_linear(f"Dense_{i}", dense, of) if isinstance(dense, torch.nn.Linear) else {}
        if self.head is not None:
            found |= of_linear(f"Dense_{sum(isinstance(d, torch.nn.Linear) for d in self.dense)}", self.head, of)
        return found


class TorchStackOverflow(TorchLSTM):
    @classmethod
    def of(cls, variables):
        return super().of(variables, layers=1, has_dense=True)


class TorchTransformer(TorchTokens, Transformer):
    """That of the benchmark."""

    head = None

    def __init__(self, shapes, heads):
        blocks = sum(name.startswith("block_") for name in shapes)
        (vocabulary, width), mlp_width = shapes["Embedding_0"]["table"], shapes["block_0"]["mlp_1"]["kernel"][1]
        Transformer.__init__(self, vocabulary, width, blocks, heads, mlp_width)


def sentences(vocabulary=8, length=6, sizes=(9, 5, 12, 7, 3), tests=21, seed=0):
    """A federation of sentences of a Markov chain of words, each ended and padded; TFF's ids."""
    rng = np.random.default_rng(seed)
    follows = rng.dirichlet(np.full(vocabulary, 0.2), vocabulary)
    tokens = np.zeros((sum(sizes) + tests, length + 1), int)
    for sentence in tokens:
        word, words = rng.integers(vocabulary), rng.integers(2, length + 1)
        sentence[0] = vocabulary + 2
        for position in range(1, words):
            word = rng.choice(vocabulary, p=follows[word])
            sentence[position] = vocabulary + 1 if rng.random() < 0.1 else word + 1
        sentence[words] = vocabulary + 3
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    names, count = tuple(map(str, range(vocabulary + 4))), sum(sizes)
    parts = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    return Federation.from_inputs(
        inputs[:count], labels[:count], parts, inputs[count:], labels[count:], class_names=names, pad=0
    )


class OnTokens(PlainFedAvg):
    """Federated averaging whose steps see the tokens that have a target, one a row."""

    def loss(self, step):
        labels = step.labels.flatten()
        is_target = labels != 0
        rows = dict(features=step.features[is_target], logits=step.logits[is_target], labels=labels[is_target])
        return super().loss(SimpleNamespace(**{**vars(step), **rows}))


class FedDecorrOnTokens(OnTokens, PlainFedDecorr):
    pass


class TokenRounds(Rounds):
    """Rounds on sentences."""

    def read(self, examples):
        return tuple(torch.tensor(np.array(part)).long() for part in (examples.inputs, examples.labels))

    def class_counts(self):
        return torch.tensor(self.sizes)[:, None]
