"""Robust rules and attacks on flat vectors in NumPy; the last of the five clients are malicious."""

import numpy as np
import torch

from reference.rounds import PlainFedAvg


class PlainMedianUnderALIE(PlainFedAvg):
    """The last client sends the mean of the others minus 1.5 deviations; the server takes the median."""

    def aggregate(self, received, clients):
        updates = {client.id: (client.params - received).numpy() for client in clients}
        honest = np.stack([update for i, update in updates.items() if i != 4])
        forged = honest.mean(axis=0) - 1.5 * honest.std(axis=0, ddof=1)
        sent = [forged if i == 4 else update for i, update in updates.items()]
        return received + torch.from_numpy(np.median(sent, axis=0))


class PlainMultiKrumUnderFlips(PlainFedAvg):
    """The last two clients train on labels 3 - y; the server averages the two updates that are closest to others."""

    def start_client(self, client):
        self.is_malicious = client.id in (3, 4)

    def loss(self, step):
        labels = 3 - step.labels if self.is_malicious else step.labels
        return torch.nn.functional.cross_entropy(step.logits, labels)

    def aggregate(self, received, clients):
        clients = sorted(clients, key=lambda client: client.id)
        updates = np.stack([(client.params - received).numpy() for client in clients])
        distances = np.sum((updates[:, None] - updates[None]) ** 2, axis=2)
        scores = [min(np.delete(row, i)) for i, row in enumerate(distances)]
        return received + torch.from_numpy(updates[np.argsort(scores, kind="stable")[:2]].mean(axis=0))
