"""Two whole rounds against a plain PyTorch loop: one client after another, one model, torch.optim.SGD, its own
BatchNorm.

The reference shares nothing with the library but initial weights and the order of examples within an epoch.
"""

import copy

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close

from fedjax_collapse import FedAvg, FedDecorr, LocalTraining, Model, engine, nn, simulate
from fedjax_collapse.data.batches import shuffled_rows
from fedjax_collapse.records import Variables

TRAINING = LocalTraining(epochs=2, batch_size=8, learning_rate=0.02, momentum=0.9, weight_decay=1e-3)
ROUNDS = 2


class TorchCNN(torch.nn.Module):
    """The network of ``nn.SmallCNN(4, channels=(5, 7))`` in PyTorch layers."""

    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList([torch.nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((2, 5), (5, 7))])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(5), torch.nn.BatchNorm2d(7)])
        self.head = torch.nn.Linear(7, 4)

    def forward(self, x):
        x = self.convs[0](x)
        x = torch.relu(self.norms[0](x))
        x = torch.relu(self.norms[1](self.convs[1](torch.nn.functional.max_pool2d(x, 2))))
        features = x.mean((2, 3))
        return features, self.head(features)

    def load(self, variables):
        params, stats = (jax.tree.map(lambda a: torch.tensor(np.array(a)), tree) for tree in variables)
        with torch.no_grad():
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                conv.weight.copy_(params[f"Conv_{i}"]["kernel"].permute(3, 2, 0, 1))
                norm.weight.copy_(params[f"BatchNorm_{i}"]["scale"])
                norm.bias.copy_(params[f"BatchNorm_{i}"]["bias"])
                norm.running_mean.copy_(stats[f"BatchNorm_{i}"]["mean"])
                norm.running_var.copy_(stats[f"BatchNorm_{i}"]["var"])
            self.head.weight.copy_(params["Dense_0"]["kernel"].T)
            self.head.bias.copy_(params["Dense_0"]["bias"])

    def dump(self):
        params = {"Dense_0": {"kernel": self.head.weight.T, "bias": self.head.bias}}
        stats = {}
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            params[f"Conv_{i}"] = {"kernel": conv.weight.permute(2, 3, 1, 0)}
            params[f"BatchNorm_{i}"] = {"scale": norm.weight, "bias": norm.bias}
            stats[f"BatchNorm_{i}"] = {"mean": norm.running_mean, "var": norm.running_var}
        return jax.tree.map(lambda t: t.detach().numpy().copy(), Variables(params, stats))


def no_penalty(features):
    return 0.0


def official_feddecorr(features):
    """FedDecorr as its released code computes it, times 0.1."""
    count, dim = features.shape
    if count == 1:
        return 0.0
    standardized = (features - features.mean(0)) / torch.sqrt(1e-8 + features.var(0))
    product = standardized.T @ standardized
    off_diagonal = ~torch.eye(dim, dtype=torch.bool)
    return 0.1 * (product[off_diagonal] ** 2).mean() / count


def epochs_of(federation, key_rounds, round, client):
    """The rows of each epoch of one client in one round, in the library's order."""
    key = jax.random.fold_in(jax.random.fold_in(key_rounds, round), 1)
    key = jax.random.fold_in(key, client)
    size = int(federation.ownership.sizes[client])
    for epoch in range(TRAINING.epochs):
        rows = shuffled_rows(jax.random.fold_in(key, epoch), federation.ownership.rows[client], size)
        yield np.array(rows)[:size]


def reference(federation, variables, key_rounds, penalty):
    """The server's variables after the rounds."""
    images = (np.asarray(federation.train.images, np.float32) - 100) / 64
    images = torch.tensor(images).permute(0, 3, 1, 2).to(torch.get_default_dtype())
    labels = torch.tensor(np.array(federation.train.labels)).long()
    sizes = np.asarray(federation.ownership.sizes)
    network = TorchCNN()
    for round in range(ROUNDS):
        trained = []
        for client in range(len(sizes)):
            network.load(variables)
            network.train()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
            for rows in epochs_of(federation, key_rounds, round, client):
                for first in range(0, len(rows), TRAINING.batch_size):
                    batch = rows[first : first + TRAINING.batch_size]
                    features, logits = network(images[batch])
                    loss = torch.nn.functional.cross_entropy(logits, labels[batch]) + penalty(features)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            trained.append(copy.deepcopy(network.dump()))
        weights = sizes / sizes.sum()
        variables = jax.tree.map(lambda *leaves, w=weights: np.tensordot(w, np.stack(leaves), 1), *trained)
    return variables


@pytest.fixture(params=["float64", "float32"])
def tolerance(request):
    """Both sides in double precision, where nothing can hide in rounding, and in single precision."""
    if request.param == "float32":
        yield 1e-5
        return
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64(True):
        yield 1e-11
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("regularizers", "penalty"),
    [({}, no_penalty), ({"feddecorr": FedDecorr(0.1, "official")}, official_feddecorr)],
    ids=["fedavg", "feddecorr"],
)
def test_rounds_equal_a_plain_pytorch_loop(federation, regularizers, penalty, tolerance):
    model = Model(nn.SmallCNN(4, channels=(5, 7)), federation.image_shape)
    variables = model.init(jax.random.key(0))  # no feature is nearly dead: FedDecorr divides by its deviation
    algorithm, key = FedAvg(TRAINING, regularizers), jax.random.key(7)
    result = simulate(
        federation, model, algorithm, rounds=ROUNDS, key=key, variables=variables, client_map=engine.Chunked(2)
    )
    expected = reference(federation, variables, jax.random.split(key)[1], penalty)
    assert_close(result.variables, expected, tolerance)
    leaves = zip(*map(jax.tree.leaves, (expected, jax.device_get(variables))), strict=True)
    assert min(np.abs(a - b).max() for a, b in leaves) > 1e-3  # every leaf was trained, so agreement means something
