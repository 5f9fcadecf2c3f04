"""The network of the references in PyTorch layers, and its parameters as flat vectors."""

import jax
import numpy as np
import torch
from flax.traverse_util import unflatten_dict

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Variables


def of_linear(name, layer, of=lambda tensor: tensor):
    return {f"{name}/kernel": of(layer.weight).T, f"{name}/bias": of(layer.bias)}


class TorchNetwork(torch.nn.Module):
    """``leaves`` has its params by path, as in the library; ``norms`` are its BatchNorms, which are in ``place``."""

    place = ""

    def load(self, variables):
        with torch.no_grad():
            for tree, tensors in zip(variables, (self.leaves(), self.running()), strict=True):
                for path, array in masks.by_path(tree).items():
                    tensors[path].copy_(torch.tensor(np.array(array)))
        return self

    def running(self):
        tensors = {}
        for i, norm in enumerate(self.norms):
            layer = f"{self.place}BatchNorm_{i}"
            tensors |= {f"{layer}/mean": norm.running_mean, f"{layer}/var": norm.running_var}
        return tensors

    def dump(self, *of):
        """The library's variables, or what ``of`` says of each param."""
        arrays = jax.tree.map(lambda t: t.detach().numpy().copy(), (self.leaves(*of), self.running()))
        return Variables(*(unflatten_dict(tree, sep="/") for tree in arrays))


class TorchCNN(TorchNetwork):
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

    def leaves(self):
        found = self.of_head()
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            found[f"Conv_{i}/kernel"] = conv.weight.permute(2, 3, 1, 0)
            found |= {f"BatchNorm_{i}/scale": norm.weight, f"BatchNorm_{i}/bias": norm.bias}
        return found

    def of_head(self):
        return of_linear("Dense_0", self.head)


def corners(dim):
    """Of the simplex of four classes."""
    basis, _ = np.linalg.qr(np.random.default_rng(3).random((dim, 4)))
    return torch.tensor(np.sqrt(4 / 3) * basis @ (np.eye(4) - 1 / 4))


class TorchETF(TorchCNN):
    """The same network with FedETF's head."""

    def __init__(self, channels):
        super().__init__(channels)
        self.scale, self.corners = torch.nn.Parameter(torch.ones(())), corners(4)

    def forward(self, x):
        features, projected = super().forward(x)
        return features, self.scale * torch.nn.functional.normalize(projected, eps=1e-12) @ self.corners

    def of_head(self):
        return of_linear("head/Dense_0", self.head) | {"head/scale": self.scale}


class TorchSimplex(TorchCNN):
    """The same network whose head has nothing to train."""

    def __init__(self, channels):
        super().__init__(channels)
        self.corners = corners(channels[1])

    def forward(self, x):
        features, _ = super().forward(x)
        return features, torch.nn.functional.normalize(features, eps=1e-12) @ self.corners

    def of_head(self):
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
    return torch.nn.utils.parameters_to_vector([torch.zeros(0), *tensors]).detach()  # there may be none


def load_params(network, flat):
    """Sets the parameters to what the flat vector says; returns the network."""
    torch.nn.utils.vector_to_parameters(flat.clone(), network.parameters())
    return network
