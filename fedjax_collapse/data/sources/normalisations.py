"""Means and standard deviations that normalise the input of a network, by name."""

from typing import Annotated

from fedjax_collapse.core.records import UserError, check_choice
from fedjax_collapse.schema.options import OpenChoice


def _scaled(*values):
    return tuple(255 * value for value in values)


# mean and standard deviation in units of 0 to 255, scalars or per channel; from the released codes of the papers
NORMALISATIONS = {
    "unit": (0.0, 255.0),  # FedMR on Fashion-MNIST, FedBN
    "half": (127.5, 127.5),  # FedUV on STL10, FedDecorr and MOON on Tiny-ImageNet
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),  # FedDecorr, MOON
    "cifar10_fedmr": (_scaled(0.4914, 0.4822, 0.4465), _scaled(0.2470, 0.2435, 0.2615)),
    "cifar10_feduv": (_scaled(0.4914, 0.4822, 0.4465), _scaled(0.247, 0.243, 0.261)),
    "cifar100": (_scaled(0.5070752, 0.4865489, 0.4409178), _scaled(0.2673343, 0.2564385, 0.2761505)),
    "svhn": (_scaled(0.4376821, 0.4437697, 0.4728044), _scaled(0.1980301, 0.2010156, 0.1970361)),  # FedMR
    "imagenet": (_scaled(0.485, 0.456, 0.406), _scaled(0.229, 0.224, 0.225)),
}
Normalisation = Annotated[str, OpenChoice(NORMALISATIONS, "")]
DEFAULTS = {  # by data set
    "cifar10": "cifar10", "cifar100": "cifar100", "svhn": "svhn", "svhn_cropped": "svhn", "stl10": "half",
}  # fmt: skip


def check_name(name: str) -> None:
    """Raises UserError if there is no normalisation of that name."""
    check_choice("normalisation", name, NORMALISATIONS)


def mean_and_std(name: str, channels: int) -> tuple[float | tuple, float | tuple]:
    """Returns mean and standard deviation for images with this number of channels, in units of 0 to 255.

    Raises:
        UserError: the normalisation does not exist, or is for another number of channels.
    """
    check_name(name)
    mean, std = NORMALISATIONS[name]
    if isinstance(mean, tuple) and len(mean) != channels:
        raise UserError(
            f"normalisation {name!r} is for {len(mean)} channels, the images have {channels}; use unit or half"
        )
    return mean, std
