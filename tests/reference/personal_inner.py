"""Per-FedAvg."""

import torch

from reference.networks import vector
from reference.personal_steps import PlainSteps


class PlainPerFedAvg(PlainSteps):
    """With the Hessian if there is a ``delta``."""

    def __init__(self, alpha, delta=None):
        self.alpha, self.delta = alpha, delta

    def loss_of(self, client, rows):
        def loss():
            _, logits = client.network(client.batch.images[rows])
            return torch.nn.functional.cross_entropy(logits, client.batch.labels[rows])

        return loss

    def backward(self, client, loss):
        count, parts = len(client.batch.labels), 2 if self.delta is None else 3
        chunks = [chunk.tolist() for chunk in torch.arange(count).tensor_split(parts)]
        adapting, meta, *own = [self.loss_of(client, chunk if count >= parts else range(count)) for chunk in chunks]
        w = vector(client.network.parameters()).clone()
        adapted = w - self.alpha * self.gradient_at(client, w, adapting, moves_statistics=True)
        g = self.gradient_at(client, adapted, meta)
        for hessian in own:
            above, below = (self.gradient_at(client, w + d * g, hessian) for d in (self.delta, -self.delta))
            g = g - self.alpha * (above - below) / (2 * self.delta)
        self.set_gradient(client, g)
