"""Each client's own examples, divided into rows to train on, to validate on and to test on."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.options import Interval, Seed, check_fields

_Share = Annotated[float, Interval(0, 1)]


class OwnSplit(NamedTuple):
    """The division of every client's examples, as in PFLlib and FL-bench: the test rows have the client's own classes.

    Of ``n`` examples, ``floor((1 - test - validation) n)`` are trained on and ``floor(validation n)`` validated on; the
    others are tested on. PFLlib's split is the default: a quarter, not stratified.

    Args:
        test: fraction of each client's examples that it is tested on.
        validation: fraction for validation, neither trained nor tested on, by which a round can be chosen.
        stratified: whether to divide each class in these proportions, as far as its size allows; a single example of a
            class is trained on.
        seed: of the draw, which depends on this seed and the client's number only.
    """

    test: _Share = 0.25
    validation: _Share = 0.0
    stratified: bool = False
    seed: Seed = 0

    def divide(self, partition: Sequence[np.ndarray], labels: np.ndarray) -> "Divided":
        """Divides the rows of every client of a partition; ``labels`` [examples] are the labels of all examples.

        Raises:
            UserError: a fraction is invalid, or a client has no example left to train on.
        """
        check_fields(self, "own tests")
        if not self.test or self.test + self.validation >= 1:
            raise UserError(
                f"own tests: test {self.test:g}, validation {self.validation:g}; expected test above 0, the sum below 1"
            )
        if self.stratified and labels.ndim > 1:
            raise UserError("own tests: stratified, but the examples have several labels each; set stratified=False")
        divided = Divided(*zip(*(self._of(k, np.asarray(own), labels) for k, own in enumerate(partition)), strict=True))
        if empty := [client for client, rows in enumerate(divided.train) if not len(rows)]:
            raise UserError(
                f"own tests: client {empty[0]} has {len(partition[empty[0]])} examples, of which none is left to train "
                "on; lower test or validation, or use fewer clients"
            )
        return divided

    def _of(self, client, own, labels):
        rows = np.random.default_rng([self.seed, client]).permutation(own)
        if self.stratified:
            rows = rows[np.argsort(_quantiles(labels[rows]), kind="stable")]
        first = int((1 - self.test - self.validation) * len(rows) + 1e-9)
        second = first + int(self.validation * len(rows) + 1e-9)
        return rows[:first], rows[first:second], rows[second:]


class Divided(NamedTuple):
    """The disjoint rows that every client trains on, validates on and is tested on."""

    train: Sequence[np.ndarray]
    validation: Sequence[np.ndarray]
    test: Sequence[np.ndarray]


def _quantiles(labels):
    """Returns for each row its place among the rows of its class, between 0 and 1."""
    places = np.empty(len(labels))
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        places[of_class] = (np.arange(len(of_class)) + 0.5) / len(of_class)
    return places
