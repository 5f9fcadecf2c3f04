"""The weight of a linear classifier: what FedUV (CVPR 2024, figure 1) watches collapse, and neural collapse compares
class means with."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.nn.model import Model


class LinearHead(NamedTuple):
    """The classifier of the logits ``weight f + bias``, in float64."""

    weight: np.ndarray  # [classes, features]
    bias: np.ndarray  # [classes]; 0 where it has none


def linear_head(model: Model, variables: Variables) -> LinearHead | None:
    """The network's head (``masks.py``), if it is linear: if it has a kernel [features, classes] and but for that at
    most a bias; else None, as for a fixed head, which has no params.

    Raises:
        UserError: the network does not say which of its layers is the head.
    """
    try:
        head = masks.select(model.mask("head").params, variables.params)
    except UserError:
        if getattr(model.module, "head", "linear") == "linear":
            raise
        return None
    kernels = [np.asarray(leaf, np.float64) for path, leaf in head.items() if path.split("/")[-1] == "kernel"]
    biases = [np.asarray(leaf, np.float64) for path, leaf in head.items() if path.split("/")[-1] == "bias"]
    outputs = model.initial_shapes()
    is_linear = len(kernels) == 1 and len(kernels) + len(biases) == len(head) and len(biases) <= 1
    if not is_linear or kernels[0].shape != (outputs.features.shape[-1], outputs.logits.shape[-1]):
        return None
    return LinearHead(kernels[0].T, biases[0] if biases else np.zeros(len(kernels[0].T)))


def weight_spectrum(
    weight: Float[np.ndarray, "classes features"], centred: bool = False
) -> Float[np.ndarray, " values"]:
    """Singular values of the weight, descending; NaN if it is not all finite.

    ``centred``: of the weight minus the mean of its rows, which shifts all logits alike, so that the softmax does not
    see it; at most C - 1 of them are not 0. The effective rank of either is ``spectrum.effective_rank`` of these.
    """
    if not np.isfinite(weight).all():
        return np.full(min(weight.shape), np.nan)
    return np.linalg.svd(weight - weight.mean(axis=0) if centred else weight, compute_uv=False)
