"""Arrays of files of ``torch.save``."""

import re
from typing import BinaryIO

import numpy as np
import torch

_HOLDERS = ("state_dict", "model_state_dict", "model")  # keys of a state dict in a checkpoint


def read(opened: BinaryIO) -> dict[str, np.ndarray]:
    """Returns the arrays of a state dict, or of a checkpoint that has one; code in the file is not run.

    Raises:
        ValueError: the file is damaged, or holds other objects.
    """
    try:
        found = torch.load(opened, map_location="cpu", weights_only=True)
    except Exception as error:  # of several kinds; some advise to run the code
        reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
        if named := re.match(r"Unsupported global: GLOBAL (\S+)", reason):
            reason = f"it has a {named[1]}, and objects with code are never loaded: save model.state_dict() alone"
        raise ValueError(re.split(r"\. |\n", reason)[0] or type(error).__name__) from error
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, expected a state dict: save model.state_dict()")
    found = next((found[key] for key in _HOLDERS if isinstance(found.get(key), dict)), found)
    tensors = {str(name): tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
    wide = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}  # NumPy has none
    return {name: tensor.detach().numpy() for name, tensor in wide.items()}
