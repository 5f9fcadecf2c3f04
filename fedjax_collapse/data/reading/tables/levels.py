"""Images that data sets store as rows of numbers."""

import math

import numpy as np


def to_levels(pixels: np.ndarray) -> np.ndarray:
    """Returns pixels of 0 to 1 in units of 0 to 255: uint8 if all are multiples of 1/255, else float32.

    Raises:
        ValueError: if a pixel is not a number of 0 to 1.
    """
    values = np.asarray(pixels, np.float32)
    if not (values.min(initial=0) >= 0 and values.max(initial=0) <= 1):  # NaN, too
        raise ValueError(f"pixels are {values.min():g} to {values.max():g}, expected 0 to 1")
    values = values * 255
    levels = np.rint(values)
    return levels.astype(np.uint8) if np.abs(values - levels).max(initial=0) < 1e-3 else values


def as_square(rows: np.ndarray) -> np.ndarray:
    """Returns rows of numbers as images [examples, height, height, 1 or 3].

    Raises:
        ValueError: if the length of a row is neither a square nor three times a square.
    """
    count, length = rows.shape
    for channels in (1, 3):
        side = math.isqrt(length // channels)
        if side and side * side * channels == length:
            return rows.reshape(count, side, side, channels)
    raise ValueError(f"rows of {length} numbers, expected square images with 1 or 3 channels")
