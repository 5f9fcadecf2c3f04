"""The weight of a linear classifier and its spectrum.

FedUV (CVPR 2024, figure 1) shows how it collapses, and neural collapse compares it with class means.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.nn.model import Model


class LinearHead(NamedTuple):
    """A linear classifier with logits ``weight f + bias``, in float64."""

    weight: np.ndarray  # [classes, features]
    bias: np.ndarray  # [classes]; 0 without a bias


def linear_head(model: Model, variables: Variables) -> LinearHead | None:
    """Returns the network's head (``masks.py``) if it is linear, else None.

    A head is linear if its params are a kernel [features, classes] and at most a bias. A fixed head has no params.

    Raises:
        UserError: if the network does not declare which of its layers is the head.
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
    """Returns the singular values of the weight, descending; NaN if the weight is not finite.

    With ``centred``, the mean of the rows is subtracted first. It shifts all logits equally, so the softmax does not
    depend on it; at most C - 1 values are then non-zero. For the effective rank, see ``spectrum.effective_rank``.
    """
    if not np.isfinite(weight).all():
        return np.full(min(weight.shape), np.nan)
    return np.linalg.svd(weight - weight.mean(axis=0) if centred else weight, compute_uv=False)
