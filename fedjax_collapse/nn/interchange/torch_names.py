"""How PyTorch names the arrays of our networks: ``to_torch``, and torchvision for its ResNets."""

from types import ModuleType

from fedjax_collapse.core.records import installed
from fedjax_collapse.nn.interchange.vit_names import Naming
from fedjax_collapse.nn.model import Model


def with_torch(module: str) -> ModuleType:
    """Returns a module next to this one that imports PyTorch.

    Raises:
        UserError: PyTorch is not installed.
    """
    return installed(f"{__package__}.{module}", "export", "PyTorch is not installed")


def of_twin(model: Model) -> Naming:
    """Returns the names of ``to_torch``.

    Raises:
        UserError: PyTorch is not installed, or the network has no twin.
    """
    names = with_torch("torch_networks").names(model)
    return Naming("to_torch", {"head": "head."}, names=names, has_projector=True)


def of_torchvision(model: Model) -> Naming:
    """Returns torchvision's names for a ``ResidualNetwork`` with normalisation.

    Raises:
        UserError: as in ``of_twin``.
    """
    names = with_torch("torch_networks").names(model)
    blocks = [f"layer{stage}.{i}" for stage, count in enumerate(model.module.blocks, 1) for i in range(count)]
    names = {path: _of_resnet(name, blocks) for path, name in names.items() if not name.startswith("projector.")}
    return Naming("torchvision", {"head": "fc."}, names=names)


def _of_resnet(name, blocks):
    """Returns torchvision's name for a twin's; ``blocks`` are the beginnings of the names in each block."""
    *parts, leaf = name.split(".")
    if parts[0] == "head":
        return f"fc.{leaf}"
    if len(parts) == 2:
        return f"{('conv1', 'bn1')[int(parts[1])]}.{leaf}"
    _, place, branch, layer = parts
    number, kind = divmod(int(layer), 3)
    own = f"downsample.{layer}" if branch == "shortcut" else f"{('conv', 'bn')[kind]}{number + 1}"
    return f"{blocks[(int(place) - 3) // 2]}.{own}.{leaf}"  # blocks and ReLUs follow the stem's three layers
