"""Losses on logits, for clients that lack classes and for heads of fixed simplex classifiers."""

import numpy as np
import torch

from reference.regularizers import PlainFedDecorr
from reference.rounds import PlainFedAvg, cross_entropy


class OnCounts(PlainFedDecorr):
    """A task and a term on logits and the counts of the client, or of all clients; FedDecorr is added."""

    def __init__(self, task=None, term=None, on_all=False):
        self.task, self.term, self.on_all = task, term, on_all

    def start_client(self, client):
        self.client_counts = self.counts.sum(0) if self.on_all else self.counts[client.id]

    def loss(self, step):
        counts = self.client_counts
        task = cross_entropy(step.logits, step.labels) if self.task is None else self.task(step, counts)
        if self.term is not None:
            with torch.no_grad():
                teacher = self.received(step.images)[1]
            task = task + self.term(step, counts, teacher)
        return task + self.penalty(step)

    def check(self, found, rounds):
        if self.on_all:
            np.testing.assert_array_equal(found.state.server.shared["fedlc"], self.counts.sum(0))


def balanced(step, counts):
    return cross_entropy(step.logits + 0.7 * torch.log(counts), step.labels)  # log 0 is -inf: no part of the softmax


def fedlc(step, counts):
    return cross_entropy(step.logits - 0.3 * counts**-0.25, step.labels)


def fedlc_without_own(step, counts):
    shifted = step.logits - 0.02 * torch.clamp(counts, min=1e-8) ** -0.25
    own = shifted.gather(1, step.labels[:, None])
    is_own = torch.nn.functional.one_hot(step.labels, 4).bool()
    return torch.mean(torch.log(torch.sum(torch.exp(shifted)[~is_own].reshape(-1, 3), 1)) - own[:, 0])


def fedrs(step, counts):
    return cross_entropy(step.logits * torch.where(counts > 0, 1.0, 0.3), step.labels)


def fedrs_without_bias(step, counts):
    scales, head = 0.3 + 0.7 * counts / counts.max(), step.network.head
    return cross_entropy(step.features @ head.weight.T * scales, step.labels)


def kl(teacher, student):
    return torch.nn.functional.kl_div(torch.log_softmax(student, 1), torch.softmax(teacher, 1), reduction="batchmean")


def fedntd(step, counts, teacher):
    keep = ~torch.nn.functional.one_hot(step.labels, 4).bool()
    return 0.6 * 3**2 * kl(*(logits[keep].reshape(-1, 3) / 3 for logits in (teacher, step.logits)))


def vls_task(step, counts):
    return cross_entropy(step.logits + torch.log(counts / counts.sum() + 1e-9), step.labels)


def vls_official(step, counts, teacher):
    shares, is_other = counts / counts.sum(), 1 - torch.nn.functional.one_hot(step.labels, 4)
    exponents = is_other * (step.logits - torch.log(shares + 1e-9) + np.log(1 / 4 + 1e-9))
    suppression = torch.sum(shares * (torch.logsumexp(exponents, 0) - np.log(len(exponents))))
    vacant = counts == 0
    return 0.4 * kl(teacher[:, vacant], step.logits[:, vacant]) * (vacant.sum() > 1) + 0.2 * 0.005 * suppression


def vls_paper(step, counts, teacher):
    vacant, total = counts == 0, 0.0
    for label in range(4):
        others = step.logits[step.labels != label, label]
        if counts[label] > 0 and len(others):
            total += counts[label] / counts.sum() * torch.log(torch.exp(others).sum() / len(step.logits))
    return 0.4 * (kl(teacher[:, vacant], step.logits[:, vacant]) if vacant.any() else 0.0) + 0.2 * total


def etf(step, counts):
    return cross_entropy(step.logits + torch.log(counts.clamp(min=1)), step.labels)


def gela(step, counts):
    return cross_entropy(step.logits * (4 * counts / counts.sum()) / 0.5, step.labels)


class PlainDr(PlainFedAvg):
    def loss(self, step):
        cosines = step.logits[torch.arange(len(step.labels)), step.labels]
        received = self.received(step.images)[0].detach()
        return 0.4 * ((cosines - 1) ** 2).mean() + 0.2 * ((step.features - received) ** 2).mean()
