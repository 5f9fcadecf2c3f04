"""The network of the references in PyTorch layers, and its parameters as flat vectors."""

import jax
import numpy as np
import torch

from fedjax_collapse.core.records import Variables


def load_linear(layer, params):
    layer.weight.copy_(params["kernel"].T)
    layer.bias.copy_(params["bias"])


def dump_linear(layer):
    return {"kernel": layer.weight.T, "bias": layer.bias}


class TorchCNN(torch.nn.Module):
    """The network of ``nn.SmallCNN(4, channels)``, of two convolutions, on images of two channels."""

    def __init__(self, channels):
        super().__init__()
        first, last = channels
        convs = (torch.nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((2, first), (first, last)))
        self.convs = torch.nn.ModuleList(convs)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(first), torch.nn.BatchNorm2d(last)])
        self.head = torch.nn.Linear(last, 4)

    @classmethod
    def of(cls, variables):
        """With these variables of the library."""
        return cls([variables.params[f"Conv_{i}"]["kernel"].shape[-1] for i in range(2)]).load(variables)

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
            self.load_head(params)
        return self

    def load_head(self, params):
        load_linear(self.head, params["Dense_0"])

    def dump_head(self):
        return {"Dense_0": dump_linear(self.head)}

    def dump(self):
        """The library's variables."""
        params, stats = self.dump_head(), {}
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            params[f"Conv_{i}"] = {"kernel": conv.weight.permute(2, 3, 1, 0)}
            params[f"BatchNorm_{i}"] = {"scale": norm.weight, "bias": norm.bias}
            stats[f"BatchNorm_{i}"] = {"mean": norm.running_mean, "var": norm.running_var}
        return jax.tree.map(lambda t: t.detach().numpy().copy(), Variables(params, stats))


class TorchETF(TorchCNN):
    """The same network with FedETF's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.scale = torch.nn.Parameter(torch.ones(()))
        basis, _ = np.linalg.qr(np.random.default_rng(3).random((4, 4)))
        self.corners = torch.tensor(np.sqrt(4 / 3) * basis @ (np.eye(4) - 1 / 4))

    def forward(self, x):
        features, projected = super().forward(x)
        return features, self.scale * torch.nn.functional.normalize(projected, eps=1e-12) @ self.corners

    def load_head(self, params):
        super().load_head(params["head"])
        self.scale.copy_(params["head"]["scale"])

    def dump_head(self):
        return {"head": {**super().dump_head(), "scale": self.scale}}


class TorchSimplex(TorchCNN):
    """The same network whose head has nothing to train."""

    def __init__(self, channels):
        super().__init__(channels)
        basis, _ = np.linalg.qr(np.random.default_rng(3).random((channels[1], 4)))
        self.corners = torch.tensor(np.sqrt(4 / 3) * basis @ (np.eye(4) - 1 / 4))

    def forward(self, x):
        features, _ = super().forward(x)
        return features, torch.nn.functional.normalize(features, eps=1e-12) @ self.corners

    def load_head(self, params):
        assert params.keys() == {"Conv_0", "Conv_1", "BatchNorm_0", "BatchNorm_1"}

    def dump_head(self):
        return {}


def state(network):
    """Parameters and running statistics by name, without PyTorch's count of batches."""
    return {name: tensor for name, tensor in network.state_dict().items() if "num_batches" not in name}


def statistics(network):
    """The running statistics, not copied."""
    return [b for norm in network.norms for b in (norm.running_mean, norm.running_var)]


def stacked(trees):
    """One tree with the leaves of all."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def set_gradient(network, flat):
    """Sets the gradients of the parameters to what the flat vector says; returns the parameters."""
    params = list(network.parameters())
    for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad = g.view_as(p).clone()
    return params


def vector(tensors):
    """One flat vector of all, detached."""
    return torch.nn.utils.parameters_to_vector(tensors).detach().clone()


def load_params(network, flat):
    """Sets the parameters to what the flat vector says; returns the network."""
    torch.nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    return network
