"""The contract of a regularizer: one published idea that adds terms to what a client minimises.

A regularizer is a frozen dataclass. Its numbers (strength, temperature) are pytree leaves, so changing one does not
recompile; its choices (variant names, flags) are declared with ``option`` and are part of the program. A new one is a
new file with one class; nothing else has to be edited:

    @struct.dataclass
    class FeatureNorm(Regularizer):
        strength: float = 0.01

        def penalty(self, view):
            squares = jnp.sum(view.outputs.features**2, axis=1)
            return {"norm": Term(self.strength, masked_mean(squares, view.batch.mask))}
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import linen, struct

from fedjax_collapse.records import Batch, LocalView, Outputs, PyTree, UserError, Variables


def option(default: Any, choices: tuple = ()) -> Any:
    """A dataclass field that is fixed for the run and part of the compiled program, such as the name of a variant."""
    return struct.field(pytree_node=False, default=default, metadata={"choices": choices})


def check_options(record: Any) -> None:
    """Raises UserError if a field with choices has another value."""
    for field in dataclasses.fields(record):
        choices, value = field.metadata.get("choices"), getattr(record, field.name)
        if choices and value not in choices:
            expected = ", ".join(map(str, choices))
            raise UserError(f"{type(record).__name__}: {field.name} {value!r}: expected one of {expected}")


def check_not_negative(record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is negative or not a number."""
    for name in names:
        if not getattr(record, name) >= 0:
            raise UserError(f"{type(record).__name__}: {name} {getattr(record, name):g} is negative, expected >= 0")


def check_positive(record: Any, *names: str) -> None:
    """Raises UserError if one of the named numbers is not above 0."""
    for name in names:
        if not getattr(record, name) > 0:
            raise UserError(f"{type(record).__name__}: {name} {getattr(record, name):g} is not positive")


class Term(NamedTuple):
    """One term of the local loss: ``strength * value`` is minimised, ``value`` is logged."""

    strength: jax.Array | float
    value: jax.Array


class FinishView(NamedTuple):
    """What a regularizer may look at when a client has finished its local training."""

    trained: Variables
    server: Variables
    shared: PyTree
    memory: PyTree
    round: jax.Array
    client: jax.Array  # identity
    # sum over the client's batches of summarize(outputs, batch), each row once; default: in evaluation mode
    sum_over_data: Callable[[Variables, Callable[[Outputs, Batch], PyTree], bool], PyTree]


class Regularizer:
    """Defaults: one strength, no memory, nothing shared. Subclasses are final: they override, without ``super``."""

    strength: float

    def check(self) -> None:
        """Raises UserError for values that make no sense; called once, outside compiled code, before a run."""
        check_options(self)
        check_not_negative(self, "strength")

    def check_network(self, module: linen.Module) -> None:
        """Raises UserError if the network lacks something that the regularizer needs; called with ``check``."""

    def is_silent(self) -> bool:
        """Whether every term has strength 0."""
        return self.strength == 0

    def starts_with_report(self) -> bool:
        """Whether all clients report, by ``finish``, on the initial model before the first round."""
        return False

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        """What ONE client keeps between its rounds. ``shapes``: features [1, d] and logits [1, classes]."""
        del variables, shapes
        return ()

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        """What the server keeps and sends to every client."""
        del variables, shapes
        return ()

    def frozen(self, server: Variables, shared: PyTree, memory: PyTree) -> dict[str, Variables]:
        """Other models whose outputs on each batch, in evaluation mode, ``penalty`` wants in ``view.frozen``.

        They do not change within a round, so each is run once over the client's examples, not once an epoch.
        """
        del server, shared, memory
        return {}

    def penalty(self, view: LocalView) -> dict[str, Term]:
        """The terms to add to the loss of one step, by name."""
        raise NotImplementedError

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        """New memory, and a report that is summed over the cohort; a client whose report is dropped adds zero."""
        return view.memory, ()

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        """What the server keeps after a round, from the sum of the cohort's reports."""
        del report
        return shared
