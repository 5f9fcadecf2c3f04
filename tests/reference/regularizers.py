"""Methods that add terms to the loss of a batch, on features, logits, prototypes or other models."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import torch
from conftest import assert_close

from fedjax_collapse.core.randomness import method_key
from fedjax_collapse.methods import MOON
from fedjax_collapse.methods.collapse.fedmr import draw_rows, is_submitter
from reference.algorithms import PlainScaffold
from reference.networks import TorchCNN
from reference.rounds import PlainFedAvg, cross_entropy

cosine = torch.nn.functional.cosine_similarity


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


class PlainFedProx(PlainFedDecorr, PlainScaffold):
    """With FedDecorr and SCAFFOLD."""

    def penalty(self, step):
        pairs = zip(step.network.parameters(), self.received.parameters(), strict=True)
        proximal = sum(((w - w0.detach()) ** 2).sum() for w, w0 in pairs)
        return 0.4 / 2 * proximal + super().penalty(step)


class PlainSpread(PlainFedAvg):
    """FedUV by the released code's two terms, DeCov, Structured DeCov of four groups, VICReg, singular values,
    and Weak-SIGReg."""

    def penalty(self, step):
        deviations = torch.softmax(step.logits, 1).std(0)
        variance = torch.relu(torch.eye(4).std(0).mean() - deviations).mean()
        squares = torch.nn.functional.pdist(step.features) ** 2
        uniformity = torch.exp(-squares / squares[squares > 0].median()).mean()
        singular = torch.linalg.svdvals(torch.cov(step.features.T, correction=0)).var(correction=0)
        isotropy = torch.linalg.norm(torch.cov(step.features.T) - torch.eye(8))
        spread = 0.3 * variance + 0.2 * uniformity + 0.7 * singular + 0.4 * isotropy
        return spread + self.decov(step.features) + self.vicreg(step.features)

    def decov(self, features):
        squares = torch.cov(features.T, correction=0) ** 2
        group = torch.arange(8) // 2
        same = group[:, None] == group[None]
        between, within = squares[~same].sum(), squares[same].sum() - squares.diag().sum()
        return 0.5 / 2 * (between + within) + 0.6 / 2 * (between - 0.1 * within)

    def vicreg(self, features):
        covariance = torch.cov(features.T)
        shortfalls = torch.relu(0.7 - torch.sqrt(covariance.diag() + 1e-3))
        off_diagonal = covariance[~torch.eye(8, dtype=torch.bool)]
        return 0.5 * shortfalls.mean() + 2.0 * (off_diagonal**2).sum() / 8


class PlainMOON(PlainFedAvg):
    def __init__(self, first_round):
        self.previous, self.first_round = {}, first_round

    def start(self):
        self.is_early = self.round == 0 and self.first_round == "random_later"
        if self.round == 0:
            self.fresh = MOON(first_round=self.first_round).init_memory(self.received.dump(), None).variables
            self.never = TorchCNN.of(self.fresh).eval() if "random" in self.first_round else None

    def start_client(self, client):
        self.mine = self.previous.get(client.id, self.never)

    def penalty(self, step):
        if self.mine is None or self.is_early:
            return 0.0
        others = (network(step.images)[0].detach() for network in (self.received, self.mine))
        scores = [torch.exp(cosine(step.features, other) / 0.3) for other in others]
        return -2.0 * torch.log(scores[0] / (scores[0] + scores[1])).mean()

    def finish(self, client):
        self.previous[client.id] = client.network

    def check(self, found, rounds):
        assert len(self.previous) == 4  # and one client was in neither cohort
        memory = found.state.clients.memory["moon"]
        for i in range(5):
            stored = jax.tree.map(lambda leaf, i=i: leaf[i], memory)
            assert stored.is_own == (i in self.previous)
            expected = self.previous[i].dump() if i in self.previous else self.fresh
            assert_close(stored.variables, expected, 1e-10)


class WithPrototypes(PlainFedAvg):
    """Prototypes of the classes, by name, from the clients that submit."""

    def __init__(self, name, submission=(1.0, 0), mode="eval"):
        self.name, self.submission, self.prototypes, self.mode = name, submission, {}, mode

    def finish(self, client):
        network = copy.deepcopy(client.network).train(self.mode == "train")
        features = torch.cat([network(batch)[0].detach() for batch in client.images.split(8)])
        submits = is_submitter(client.id, *self.submission)
        return (features, client.labels) if submits else (features[:0], client.labels[:0])

    def aggregate(self, received, clients):
        features, labels = (torch.cat(rows) for rows in zip(*(client.report for client in clients), strict=True))
        self.prototypes |= {label: features[labels == label].mean(0) for label in labels.unique().tolist()}
        return super().aggregate(received, clients)

    def check(self, found, rounds):
        stored = found.state.server.shared[self.name]
        assert stored.valid.all()
        assert_close(stored.means, np.stack([self.prototypes[label].numpy() for label in range(4)]), 1e-10)


class PlainFedMR(WithPrototypes):
    def __init__(self, intra, inter, submission=(1.0, 0), mode="eval"):
        super().__init__("fedmr", submission, mode)
        self.intra, self.inter = intra, inter

    def start_client(self, client):
        self.classes = client.labels.unique().tolist()

    def penalty(self, step):
        return self.intra(step.features, step.labels) + self.inter(self, step)


def paper_intra(features, labels):
    """Mean over classes of ||M_c||_F^2, times 1e-3."""
    norms = []
    for label in labels.unique():
        rows = features[labels == label]
        if len(rows) > 1:
            z = (rows - rows.mean(0)) / torch.sqrt(rows.var(0, correction=0) + 1e-3)
            norms.append(((z.T @ z / (len(rows) - 1)) ** 2).sum())
    return 1e-3 * torch.stack(norms).mean() if norms else 0.0


def official_intra(features, labels):
    """As in the released code but for classes of at least three rows, times 0.1."""
    off_diagonal, total, count = ~torch.eye(8, dtype=torch.bool), 0.0, 0
    for label in labels.unique():
        rows = features[labels == label]
        if len(rows) > 2:
            z = (rows - rows.mean(0)) / torch.sqrt(rows.var(0) + 1e-3)
            total, count = total + ((z.T @ z)[off_diagonal] ** 2).mean(), count + len(rows)
    return 0.1 * total / max(count, 1)


def local_margin(method, step):
    return 0.5 * mean_hinge(step.features, step.labels, method.prototypes, method.classes)


def lite_margin(method, step):
    """Of three random rows, negatives from all classes."""
    drawn = draw_rows(method_key(step.key, "fedmr"), jnp.arange(8) < len(step.labels), 3)
    chosen = torch.tensor(np.array(drawn)[: len(step.labels)])
    return 0.5 * mean_hinge(step.features[chosen], step.labels[chosen], method.prototypes, range(4))


def no_margin(method, step):
    norms = [
        (step.features[step.labels == label] - prototype).norm(dim=1).mean()
        for label, prototype in method.prototypes.items()
        if label in step.labels
    ]
    return 0.5 * torch.stack(norms).mean() if norms else 0.0


def mean_hinge(features, labels, prototypes, negatives):
    terms = []
    for own in labels.unique().tolist():
        for other in negatives:
            if own != other and own in prototypes and other in prototypes:
                rows = features[labels == own]
                near, far = ((rows - prototypes[c]).norm(dim=1) for c in (own, other))
                terms.append(torch.relu(near - far).mean())
    return torch.stack(terms).mean() if terms else 0.0


class PlainFedProc(WithPrototypes):
    def loss(self, step):
        task = cross_entropy(step.logits, step.labels)
        if not self.prototypes:
            return task
        prototypes = torch.stack([self.prototypes[label] for label in range(4)])
        cosines = cosine(step.features[:, None], prototypes[None], dim=2)
        weight = min(self.round / 4, 1)
        return weight * task + (1 - weight) * cross_entropy(cosines, step.labels)


class PlainFedRCL(PlainFedAvg):
    def penalty(self, step):
        levels, labels = levels_of(step.network, step.images), step.labels
        return sum(0.5 * self.contrast(f, labels) + 2.0 * self.excess(f, labels) for f in levels) / len(levels)

    def contrast(self, features, labels):
        cosines, same = pairs(features, labels)
        losses = []
        for row, own in zip(cosines, same, strict=True):
            chosen = torch.cat([row[own].min()[None], row[~own].sort(descending=True).values[:2]])
            losses.append(-torch.log_softmax(chosen / 0.2, 0)[0])
        return torch.stack(losses).mean()

    def excess(self, features, labels):
        cosines, same = pairs(features, labels)
        losses = []
        for i, (row, own) in enumerate(zip(cosines, same, strict=True)):
            others = row[own & (torch.arange(len(own)) != i)]
            is_dense = len(others) > 0 and others.min() >= 0.3
            similarity = others.min() if is_dense else torch.tensor(-1.0)
            losses.append(torch.nn.functional.softplus((similarity - 1) / 0.2))
        return torch.stack(losses).mean()


def pairs(features, labels):
    unit = torch.nn.functional.normalize(features)
    return unit @ unit.T, labels[:, None] == labels


def levels_of(network, x):
    """The outputs of both layers before their ReLU, means over the pixels; running statistics stay."""
    levels = []
    for conv, norm in zip(network.convs, network.norms, strict=True):
        x = conv(torch.nn.functional.max_pool2d(torch.relu(x), 2) if levels else x)
        x = torch.nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)
        levels.append(x.mean((2, 3)))
    return levels
