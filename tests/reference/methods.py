"""Methods that more than one test needs."""

import torch

from reference.rounds import PlainFedAvg


class PlainFedDecorr(PlainFedAvg):
    """As its released code computes it, times 0.1."""

    def penalty(self, step):
        count, dim = step.features.shape
        if count == 1:
            return 0.0
        standardized = (step.features - step.features.mean(0)) / torch.sqrt(1e-8 + step.features.var(0))
        product = standardized.T @ standardized
        off_diagonal = ~torch.eye(dim, dtype=torch.bool)
        return 0.1 * (product[off_diagonal] ** 2).mean() / count


class PlainStates(PlainFedAvg):
    """With a vector at the server and one or two at each client, all zero before the first round."""

    def setup(self, num_params, sizes, training):
        super().setup(num_params, sizes, training)
        self.server = torch.zeros(num_params)
        self.own, self.h = torch.zeros(len(sizes), num_params), torch.zeros(len(sizes), num_params)

    def norm(self, steps):
        """1-norm of the weights of all gradients in the sum of momentum's buffers."""
        rho = self.training.momentum
        return sum(sum(rho**j for j in range(k + 1)) for k in range(steps))


class PlainScaffold(PlainStates):
    """The server's control variate moves by the mean change over all clients of those that are heard."""

    strength = 1.0

    def correction(self, client, w):
        return self.strength * (self.server - self.own[client.id])

    def finish(self, client):
        moved = client.params - client.received
        change = -self.server - moved / (self.norm(client.steps) * client.learning_rate)
        self.own[client.id] += change
        return change

    def aggregate(self, received, clients):
        self.server = self.server + sum(client.report for client in clients) / len(self.sizes)
        return self.average(clients)


class PlainFedDyn(PlainStates):
    alpha = 0.1

    def share(self, client):
        """The client's alpha, by its size."""
        return self.alpha * self.sizes.mean() / self.sizes[client.id]

    def weights(self, sizes):
        return [1 / len(sizes)] * len(sizes)

    def correction(self, client, w):
        return self.share(client) * (self.h[client.id] - client.received)

    def decay(self, client):
        return self.share(client)

    def finish(self, client):
        self.h[client.id] += client.params - client.received

    def aggregate(self, received, clients):
        return self.average(clients) + self.h.mean(0)
