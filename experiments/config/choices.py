"""The names that a value may be where its type is only ``str``, for ``--help`` and completion."""

import functools
from collections.abc import Iterable
from typing import Any, Self

from experiments.config import build
from experiments.config.algorithms import SERVER_OPTIMIZERS
from experiments.config.names import classes, functions
from fedjax_collapse.data import augment, partition, sources
from fedjax_collapse.data.sources.normalisations import NORMALISATIONS
from fedjax_collapse.nn.layers import DTYPES, NORMS
from fedjax_collapse.nn.lowerings.convolution import LOWERINGS
from fedjax_collapse.nn.networks.residual import INITS
from fedjax_collapse.nn.projector import PROJECTORS

CUSTOM = '"module:Name"'


class OpenChoice(tuple):
    """Known names, as ``choices`` of an argument that also takes other values, which the program checks itself.

    Such values are custom, a ``module:Name``, or several names with commas between them.

    Args:
        names: the known names.
        other: describes the other values; empty if there are none but lists of names.
    """

    def __new__(cls, names: Iterable[str], other: str = CUSTOM) -> Self:
        """Returns the names as a tuple."""
        made = super().__new__(cls, names)
        made.other = other
        return made

    def __contains__(self, value: object) -> bool:
        return True

    def in_words(self) -> str:
        """Returns all names, and what else is valid, as Python writes them: ``'batch' | 'group'``."""
        return " | ".join([*map(repr, self), *filter(None, [self.other])])

    def argument(self, what: str) -> dict[str, Any]:
        """Returns the options of ``add_argument`` for names with commas between them; ``what`` is before them."""
        listed = ", ".join(self) + (f", or {self.other}" if self.other else "")
        return {"choices": self, "metavar": "NAME,...", "help": f"{what} {listed}"}


_PARTS = OpenChoice(("none", "all", "batch_norm", "head", "body"), '"path" | "part+part"')


@functools.cache
def of_keys() -> dict[str, OpenChoice]:
    """Returns the known names by key of a config, dotted."""
    return {
        "data.source": OpenChoice(functions(sources)),
        "partition.name": OpenChoice(functions(partition)),
        "network.name": OpenChoice(classes("network")),
        "cohort.sampler.name": OpenChoice(build.SAMPLERS),
        "server.optimizer.name": OpenChoice(["none", *SERVER_OPTIMIZERS]),
        "training.augmentation": OpenChoice(augment.PRESETS),
        "private": _PARTS,
        "head": OpenChoice(build.HEADS, ""),
        "watch": OpenChoice(("one", "all"), "(int, ...)"),
    }


@functools.cache
def of_options() -> dict[str, OpenChoice]:
    """Returns the known names by option of what a config chooses."""
    return {
        "head": OpenChoice(classes("head"), '"module:Class"'),
        "norm": OpenChoice(NORMS, ""),
        "lowering": OpenChoice((*LOWERINGS, "timed"), ""),
        "projector": OpenChoice(PROJECTORS, ""),
        "kernel_init": OpenChoice(INITS, ""),
        "dtype": OpenChoice(filter(None, DTYPES), ""),
        "normalisation": OpenChoice(NORMALISATIONS, ""),
        "method": OpenChoice(partition.PATHOLOGICAL, ""),
        "freeze": _PARTS,
        "shared": _PARTS,
    }


def in_words(names: OpenChoice | None, words: str) -> str:
    """Returns the words for a type with the names, if there are any, in place of ``str`` and of a function."""
    if names is None:
        return words
    others = [kind for kind in words.split(" | ") if kind not in ("str", '"module:function"', names.other)]
    return " | ".join([names.in_words(), *others])


def quoted(words: str) -> OpenChoice | None:
    """Returns the names in the description of a value, such as ``'params' | 'all'``; None if there are none."""
    names = (kind[1:-1] for kind in words.split(" | ") if kind.startswith("'"))
    names = ("True", "False") if words == "bool" else tuple(names)
    return OpenChoice(names, "") if names else None
