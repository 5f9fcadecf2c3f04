"""The domains of examples with feature shift."""

from typing import NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError, in_one_line
from fedjax_collapse.data.arrays import as_array, as_labels, as_names
from fedjax_collapse.schema.options import check_value


class Domains(NamedTuple):
    """The domains of the examples of a federation with feature shift; stored on the host."""

    names: tuple[str, ...]
    train: np.ndarray  # [training examples] int32, index into names
    test: np.ndarray  # [test examples] int32

    __repr__ = in_one_line

    @property
    def has_tests(self) -> np.ndarray:
        """Whether a domain has test examples, [domains]."""
        return np.bincount(self.test, minlength=len(self.names)) > 0


def checked_domains(domains: Domains | None, labels: np.ndarray, test_labels: np.ndarray) -> Domains | None:
    """Returns the domains with integers as int32; raises UserError unless they fit the labels."""
    if domains is None:
        return None
    check_value("data: domains", domains, Domains)
    names = as_names("data: names of domains", domains.names)
    checked = []
    for name, part, count in (("train", domains.train, len(labels)), ("test", domains.test, len(test_labels))):
        part = as_array(f"{name} domains", part)
        part = as_labels(f"{name} domains", part.astype(np.uint8) if part.dtype == bool else part)
        if len(part) != count:
            raise UserError(f"{name} domains: shape {part.shape}, expected one per example, ({count},)")
        if part.max() >= len(names):
            raise UserError(f"{name} domains: {part.max()} is none of the {len(names)} names, counted from 0")
        checked.append(part)
    return Domains(names, *checked)
