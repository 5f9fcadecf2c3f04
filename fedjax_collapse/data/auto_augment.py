"""AutoAugment's CIFAR-10 policy as FedDecorr's released code applies it: the table, and one image at a time.

One of 25 sub-policies is drawn for every image, and each of its two operations is applied with its probability. The
table is that of Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data" (CVPR 2019). Magnitudes differ
from other implementations: level k is uniform between the k-th and the (k+1)-th of eleven equally spaced values, so
signed operations have a negative sign below level 5, not a random one. Geometric operations interpolate with cubic
splines around (height / 2 + 0.5, width / 2 + 0.5) on (row, column), which swaps the two shears with respect to Pillow,
and turns clockwise.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.data import pixels
from fedjax_collapse.records import Key


class Operation(NamedTuple):
    """A row's half: what, with which probability, at which level of 0 to 9."""

    name: str
    probability: float
    level: int


RANGES = {  # magnitudes at both ends of the eleven values; operations without magnitude have none
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "TranslateX": (-150 / 331, 150 / 331),  # of the width
    "TranslateY": (-150 / 331, 150 / 331),  # of the height
    "Rotate": (-30.0, 30.0),  # degrees
    "Invert": (0.0, 0.0),
    "Solarize": (0.0, 256.0),
    "Posterize": (4.0, 8.0),
    "AutoContrast": (0.0, 0.0),
    "Equalize": (0.0, 0.0),
    "Brightness": (0.1, 1.9),
    "Contrast": (0.1, 1.9),
    "Color": (0.1, 1.9),
    "Sharpness": (0.1, 1.9),
}
NAMES = tuple(RANGES)

_TABLE = """
    Invert .1 7, Contrast .2 6;         Rotate .7 2, TranslateX .3 9;       Sharpness .8 1, Sharpness .9 3
    ShearY .5 8, TranslateY .7 9;       AutoContrast .5 8, Equalize .9 2;   ShearY .2 7, Posterize .3 7
    Color .4 3, Brightness .6 7;        Sharpness .3 9, Brightness .7 9;    Equalize .6 5, Equalize .5 1
    Contrast .6 7, Sharpness .6 5;      Color .7 7, TranslateX .5 8;        Equalize .3 7, AutoContrast .4 8
    TranslateY .4 3, Sharpness .2 6;    Brightness .9 6, Color .2 8;        Solarize .5 2, Invert 0 3
    Equalize .2 0, AutoContrast .6 0;   Equalize .2 8, Equalize .6 4;       Color .9 9, Equalize .6 6
    AutoContrast .8 4, Solarize .2 8;   Brightness .1 3, Color .7 0;        Solarize .4 5, AutoContrast .9 3
    TranslateY .9 9, TranslateY .7 9;   AutoContrast .9 2, Solarize .8 3;   Equalize .8 8, Invert .1 3
    TranslateY .7 9, AutoContrast .9 1
"""


def _parse(operation):
    name, probability, level = operation.split()
    return Operation(name, float(probability), int(level))


POLICY = tuple(
    tuple(map(_parse, row.split(","))) for row in _TABLE.replace(";", "\n").splitlines() if row.strip()
)  # 25 pairs of operations


class Draw(NamedTuple):
    """What happens to one image: both operations in order, [2] each."""

    operation: jax.Array  # int32 into NAMES
    applied: jax.Array  # bool
    magnitude: jax.Array


def draw(key: Key) -> Draw:
    """A random sub-policy, which of its operations are applied, and their magnitudes."""
    choice, applied, magnitude = jax.random.split(key, 3)
    row = jax.random.randint(choice, (), 0, len(POLICY))
    operation = jnp.asarray([[NAMES.index(o.name) for o in pair] for pair in POLICY])[row]
    probability = jnp.asarray([[o.probability for o in pair] for pair in POLICY])[row]
    bounds = jnp.asarray([[_bounds(o) for o in pair] for pair in POLICY])[row]  # [2 operations, 2]
    return Draw(
        operation,
        jax.random.uniform(applied, (2,)) < probability,
        bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * jax.random.uniform(magnitude, (2,)),
    )


def apply_operation(image: jax.Array, operation: jax.Array, magnitude: jax.Array) -> jax.Array:
    """One operation, by its number in ``NAMES``. Under ``vmap`` all kinds are computed, but only one warp."""
    return jax.lax.switch(jnp.clip(operation - 4, 0, len(_BRANCHES) - 1), _BRANCHES, image, operation, magnitude)


def _bounds(operation):
    """The lowest and the highest magnitude of a level."""
    first, last = RANGES[operation.name]
    return tuple(np.linspace(first, last, 11)[operation.level : operation.level + 2])


def _warp(image, operation, magnitude):
    """Shears, translations and rotation are one warp with another matrix."""
    height, width, _ = image.shape
    shear_x, shear_y, shift_x, shift_y, angle = jnp.where(operation == jnp.arange(5), magnitude, 0)
    shear = jnp.stack([jnp.stack([1.0, shear_x]), jnp.stack([shear_y, 1.0])])
    matrix = jnp.where(operation == 4, pixels.rotation(-angle), shear)
    middle = jnp.array([height, width]) / 2 + 0.5
    offset = middle - jnp.sum(matrix * middle[None], axis=1) + jnp.stack([height * shift_y, width * shift_x])
    return pixels.warp_cubic(image, matrix, offset)


# the five geometric operations first; the others in the order of NAMES
_BRANCHES = (
    _warp,
    lambda image, _, magnitude: pixels.invert(image),
    lambda image, _, magnitude: pixels.solarize(image, magnitude),
    lambda image, _, magnitude: pixels.posterize(image, jnp.rint(magnitude)),
    lambda image, _, magnitude: pixels.autocontrast(image),
    lambda image, _, magnitude: pixels.equalize(image),
    lambda image, _, magnitude: pixels.brightness(image, magnitude),
    lambda image, _, magnitude: pixels.contrast(image, magnitude),
    lambda image, _, magnitude: pixels.saturation(image, magnitude),
    lambda image, _, magnitude: pixels.sharpness(image, magnitude),
)
