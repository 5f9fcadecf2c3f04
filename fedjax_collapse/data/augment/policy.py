"""AutoAugment's CIFAR-10 policy for one image, with two rules for the magnitude of a level.

For each image one of 25 sub-policies is drawn, and each of its two operations is applied with its probability. The
table is from Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data" (CVPR 2019).

``feddecorr``, FedDecorr's released code: level k is uniform between the k-th and the (k+1)-th of eleven equally spaced
values, so signed operations have a negative sign below level 5, not a random one. Geometric operations interpolate with
cubic splines around (height / 2 + 0.5, width / 2 + 0.5) on (row, column), which swaps the two shears with respect to
Pillow and rotates clockwise.

``torchvision``, its ``AutoAugment`` on Pillow images: level k is k / 9 of the largest strength, in a random direction.
Geometric operations use nearest pixels: shifts by whole pixels, shears from the corner, rotations around the centre.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import Key, check_choice
from fedjax_collapse.data.augment import pixels


class Operation(NamedTuple):
    """One of the two operations of a sub-policy: its name, probability and level, 0 to 9."""

    name: str
    probability: float
    level: int


RANGES = {  # magnitudes at both ends; (0, 0) for operations without magnitude
    **dict.fromkeys(("ShearX", "ShearY"), (-0.3, 0.3)),
    **dict.fromkeys(("TranslateX", "TranslateY"), (-150 / 331, 150 / 331)),  # of the width, of the height
    "Rotate": (-30.0, 30.0),  # degrees
    "Invert": (0.0, 0.0),
    "Solarize": (0.0, 256.0),
    "Posterize": (4.0, 8.0),
    **dict.fromkeys(("AutoContrast", "Equalize"), (0.0, 0.0)),
    **dict.fromkeys(("Brightness", "Contrast", "Color", "Sharpness"), (0.1, 1.9)),
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


# 25 pairs of operations
POLICY = tuple(tuple(map(_parse, row.split(","))) for row in _TABLE.replace(";", "\n").splitlines() if row.strip())


class Draw(NamedTuple):
    """The two operations applied to one image, in order; each field is [2]."""

    operation: jax.Array  # int32, index into NAMES
    applied: jax.Array  # bool
    magnitude: jax.Array


class Rule(NamedTuple):
    """The meaning of a level."""

    bounds: Callable[[Operation], tuple[float, float]]  # the two ends of an operation's magnitude
    between: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # both ends and a uniform number -> magnitude
    warp: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # image, operation of the first five, magnitude


def draw(key: Key, rule: str = "feddecorr") -> Draw:
    """Draws a sub-policy, the operations of it that are applied, and their magnitudes."""
    choice, applied, magnitude = jax.random.split(key, 3)
    row = jax.random.randint(choice, (), 0, len(POLICY))
    operation = jnp.asarray([[NAMES.index(o.name) for o in pair] for pair in POLICY])[row]
    probability = jnp.asarray([[o.probability for o in pair] for pair in POLICY])[row]
    bounds = jnp.asarray([[RULES[rule].bounds(o) for o in pair] for pair in POLICY])[row]  # [2 operations, 2]
    return Draw(
        operation,
        jax.random.uniform(applied, (2,)) < probability,
        RULES[rule].between(bounds[:, 0], bounds[:, 1], jax.random.uniform(magnitude, (2,))),
    )


def apply_drawn(image: jax.Array, drawn: Draw, rule: str = "feddecorr") -> jax.Array:
    """Applies one drawn operation (each field a scalar), or returns the image if it is not applied.

    On a CPU images are processed one after the other: under ``vmap``, each image would compute all operations.
    """
    branches = (lambda image, _, magnitude: image, RULES[rule].warp, *_POINTWISE)

    def apply(image, operation, applied, magnitude):
        branch = jnp.where(applied, jnp.clip(operation - 3, 1, len(branches) - 1), 0)  # five operations are one warp
        return jax.lax.switch(branch, branches, image, operation, magnitude)

    sequential = jax.custom_batching.sequential_vmap(apply)
    return jax.lax.platform_dependent(image, *drawn, cpu=sequential, default=apply)


def check_rule(name: str) -> None:
    """Raises UserError if there is no rule of that name."""
    check_choice("auto_augment rule", name, RULES)


def _level_of_eleven(operation):
    """FedDecorr: returns the smallest and the largest magnitude of a level."""
    first, last = RANGES[operation.name]
    return tuple(np.linspace(first, last, 11)[operation.level : operation.level + 2])


def _either_direction(operation):
    """torchvision: returns the magnitudes in both directions from the middle of the range; equal ones without sign."""
    name, _, level = operation
    if name == "Solarize":
        return 255 - 255 * level / 9, 255 - 255 * level / 9
    if name == "Posterize":
        return 8 - np.rint(level / 2.25), 8 - np.rint(level / 2.25)
    first, last = RANGES[name]
    middle, strength = (first + last) / 2, float(_linspace_to((last - first) / 2, level))
    return middle - strength, middle + strength


def _linspace_to(last, level):
    """Entry ``level`` of torch.linspace(0, last, 10), bit for bit, as many products with it are close to integers."""
    last = np.float32(last)
    step = last / np.float32(9)
    return step * level if level < 5 else last - step * (9 - level)


def _warp_cubic(image, operation, magnitude):
    shear_x, shear_y, shift, angle = _geometry(image, operation, magnitude)
    matrix = jnp.where(operation == 4, pixels.rotation(-angle), _shear(shear_x, shear_y))
    middle = jnp.array(image.shape[:2]) / 2 + 0.5
    return pixels.warp_cubic(image, matrix, pixels.offset_about(matrix, middle) + shift)


def _warp_nearest(image, operation, magnitude):
    shear_x, shear_y, shift, angle = _geometry(image, operation, magnitude)
    matrix = jnp.where(operation == 4, pixels.rotation(angle), _shear(shear_y, shear_x))
    about_middle = pixels.offset_about(matrix, jnp.array(image.shape[:2]) / 2)
    return pixels.warp_nearest(image, matrix, jnp.where(operation == 4, about_middle, -jnp.trunc(shift)))


def _geometry(image, operation, magnitude):
    """Returns both shears, the shift in pixels (row, column) and the angle in degrees; only one is non-zero."""
    height, width, _ = image.shape
    shear_x, shear_y, shift_x, shift_y, angle = jnp.where(operation == jnp.arange(5), magnitude, 0)
    return shear_x, shear_y, jnp.stack([height * shift_y, width * shift_x]), angle


def _shear(row_by_column, column_by_row):
    return jnp.stack([jnp.stack([1.0, row_by_column]), jnp.stack([column_by_row, 1.0])])


RULES = {
    "feddecorr": Rule(_level_of_eleven, lambda low, high, part: low + (high - low) * part, _warp_cubic),
    "torchvision": Rule(_either_direction, lambda low, high, part: jnp.where(part < 0.5, low, high), _warp_nearest),
}
_POINTWISE = (  # all but the five geometric operations, in the order of NAMES
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
