"""Methods with a head of their own, or whose head is never trained."""

import torch

from reference.networks import TorchCNN
from reference.rounds import PlainFedAvg

cross_entropy = torch.nn.functional.cross_entropy


class TorchTwoHeads(TorchCNN):
    """The same network with FedRoD's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.personal = torch.nn.Linear(channels[1], 4)

    def load_head(self, params):
        for layer, own in ((self.head, params["head"]), (self.personal, params["head"]["personal"])):
            layer.weight.copy_(own["kernel"].T)
            layer.bias.copy_(own["bias"])

    def dump_head(self):
        generic, personal = ({"kernel": layer.weight.T, "bias": layer.bias} for layer in (self.head, self.personal))
        return {"head": {**generic, "personal": personal}}


class PlainFedRoD(PlainFedAvg):
    """With FL-bench's loss of the personal head, or the paper's."""

    private = ("personal",)

    def __init__(self, alone):
        self.alone = alone

    def start_client(self, client):
        self.prior = torch.log(self.counts[client.id])

    def loss(self, step):
        balanced = cross_entropy(step.logits + 0.8 * self.prior, step.labels)
        if self.alone:
            return balanced + cross_entropy(step.network.personal(step.features), step.labels)
        personal = step.logits.detach() + step.network.personal(step.features.detach())
        return balanced + cross_entropy(personal, step.labels)
