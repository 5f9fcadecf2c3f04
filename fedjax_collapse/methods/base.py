"""The contract of a method: one published idea, as the hooks that it adds to federated averaging.

A method is a frozen dataclass. Its numbers (strength, temperature) are pytree leaves, so changing one does not
recompile; its choices (variant names, flags) are declared with ``option`` and are part of the program. It overrides
the hooks that it needs; hooks that nobody overrides cost nothing. All are pure and written for one client:

    init_shared, init_memory    what the server keeps and sends, what a client keeps
    share_private, own_parts    what clients have of their private parts, by what the server keeps
    task, penalty               the loss that is minimised, terms that are added to it
    gradient, correct, decay    how the gradient is taken, what the local optimizer sees of it
    upload, finish              what is sent of the update, what is reported and remembered
    combine, aggregate          what the server keeps, how it moves
    measure, apply              a second pass of the cohort, over the new model
    after_round                 what the server keeps once it has its new model
    evaluated                   which model is scored

Beside its hooks a method may say how clients are weighted, which part of the network they keep for themselves, and
by ``phases`` which parts they train one after the other.

A new method is a new file with one class; nothing else has to be edited.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax

from fedjax_collapse.core.options import NonNegative, check_fields, check_value
from fedjax_collapse.core.records import Batch, Client, Key, Outputs, PyTree, Scalar, UserError, Variables
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining, Phase


class Term(NamedTuple):
    """One term of the local loss: ``strength * value`` is minimised, ``value`` is logged."""

    strength: Scalar
    value: jax.Array


@dataclasses.dataclass(frozen=True)
class RoundView:
    """What a method may look at of one client in one round."""

    server: Variables  # what the client received, with its own private parts
    shared: PyTree  # the method's own, of the server
    memory: PyTree  # the method's own, of this client
    round: jax.Array  # 0 in the first round
    client: Client
    class_counts: jax.Array | None  # [classes] int32, examples of each class that the client owns; None without classes
    training: LocalTraining
    model: Model


@dataclasses.dataclass(frozen=True)
class LocalView(RoundView):
    """What a loss may look at, in one step of one client."""

    params: PyTree  # being trained
    outputs: Outputs  # of this batch, in training mode
    batch: Batch
    frozen: dict[str, Outputs]  # of this batch, of the models that the method asked for
    key: Key  # of the method in this step


@dataclasses.dataclass(frozen=True)
class GradientView(RoundView):
    """What a method may look at when it takes the gradient of a step."""

    held: PyTree  # the mask of params that stay where they are: private to the client, or not trained in this step


@dataclasses.dataclass(frozen=True)
class FinishView(RoundView):
    """What a method may look at when a client has finished its local training.

    ``public`` is what may leave the client: ``trained``, but for its private parts, which are the server's there, and
    ``update`` is the way of its params from the server's. ``sent`` is what methods have made of it so far, all of them
    in ``finish``; it is 0 in what the server does not change. ``sum_over_batches(summarize)`` adds up
    ``summarize(batch)`` over the client's data, each row once; ``sum_over_data(variables, summarize, train=False)``
    adds up ``summarize(outputs, batch)``.
    """

    trained: Variables
    public: Variables
    update: PyTree
    sent: PyTree
    steps: jax.Array  # number of optimizer steps taken
    learning_rate: jax.Array  # of this round
    key: Key  # of the method in this round
    sum_over_batches: Callable[[Callable[[Batch], PyTree]], PyTree]

    def sum_over_data(
        self, variables: Variables, summarize: Callable[[Outputs, Batch], PyTree], train: bool = False
    ) -> PyTree:
        """The sum over the client's data of what is made of each batch's outputs."""
        return self.sum_over_batches(lambda batch: summarize(self.model.apply(variables, batch, train)[0], batch))


def returned(method: str, hook: str, value: PyTree, like: PyTree) -> PyTree:
    """The value that the method's hook returned.

    Raises:
        UserError: it is not a tree of the same structure, shapes and types as what the hook got.
    """
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(like, value)
    except (AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"method {method}: its {hook} returned another tree than it got: {reason}") from error
    return value


class Method:
    """Defaults: no state, and hooks that do nothing. Subclasses are final: they override, without ``super``."""

    weighting: str | None = None  # of the clients, where it is other than by size (``FedAvg.weighting``)
    needs_classes: bool = False  # whether it works on labels and logits of classes, so that other tasks are refused
    private: str = "none"  # the part of the network that clients keep, besides ``FedAvg.private``
    needs_levels: bool = False  # whether ``penalty`` looks at ``view.outputs.levels``
    strengths: tuple[str, ...] = ()  # the fields that say how much of it there is; with 0 in all it does nothing

    def check(self) -> None:
        """Raises UserError for values that make no sense; called once, outside compiled code, before a run."""
        check_fields(self)

    def check_with(self, training: LocalTraining, private: str, model: Model) -> None:
        """Raises UserError if the method cannot work with that local training, private part or model; called once."""

    def check_among(self, methods: Mapping[str, "Method"]) -> None:
        """Raises UserError if the method, one of them, cannot work with the others or in this order; called once."""

    def enabled(self) -> bool:
        """Whether it does anything; one that does nothing, as its strengths are 0, is left out of the program."""
        strengths = [getattr(self, name) for name in self.strengths]
        return not strengths or any(strength != 0 for strength in strengths)

    def has(self, hook: str) -> bool:
        """Whether it overrides the hook."""
        return getattr(type(self), hook) is not getattr(Method, hook)

    def phases(self) -> tuple[Phase, ...]:
        """What local training goes through instead of ``LocalTraining.epochs``; at most one method has it."""
        raise NotImplementedError

    def starts_with_report(self) -> bool:
        """Whether all clients report, by ``finish``, on the initial model before the first round."""
        return False

    def measures_all(self) -> bool:
        """Whether all clients ``measure`` the model before each evaluation, instead of the cohort in each round.

        Then ``after_round`` is called only there, with the same model before and after, and ``apply`` is not called.
        """
        return False

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        """What ONE client keeps between its rounds. ``shapes``: features [1, d] and logits [1, classes]."""
        del variables, shapes
        return ()

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        """What the server keeps and sends to every client."""
        del variables, shapes
        return ()

    def share_private(self, private: dict[str, jax.Array]) -> PyTree:
        """What the server keeps, instead of ``init_shared``, from the initial private parts by path."""
        raise NotImplementedError

    def own_parts(self, private: dict[str, jax.Array], shared: PyTree, memory: PyTree) -> dict[str, jax.Array]:
        """The private parts by path with which a client starts a round and is scored; it has stored ``private``."""
        raise NotImplementedError

    def frozen(self, server: Variables, shared: PyTree, memory: PyTree) -> dict[str, Variables]:
        """Other models whose outputs on each batch, in evaluation mode, ``penalty`` wants in ``view.frozen``.

        They do not change within a round, so each is run once over the client's examples, not once an epoch.
        """
        del server, shared, memory
        return {}

    def task(self, view: LocalView) -> jax.Array:
        """The loss of a batch instead of the model's task; at most one method of an algorithm has it."""
        raise NotImplementedError

    def penalty(self, view: LocalView) -> dict[str, Term]:
        """The terms to add to the loss of one step, by name."""
        raise NotImplementedError

    def gradient(self, gradient_of: Callable[[PyTree], PyTree], params: PyTree, view: GradientView) -> PyTree:
        """The gradient of a step, by one or more calls of ``gradient_of(params)``, all on the same batch and key.

        Running statistics and metrics are those of the first call; the gradient of what is not trained is 0. At most
        one method of an algorithm has it.
        """
        raise NotImplementedError

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        """The gradient that the local optimizer sees, before it is clipped. Private parts stay uncorrected."""
        raise NotImplementedError

    def decay(self, view: RoundView) -> Scalar:
        """Weight decay that is added after clipping to the one of ``training``."""
        raise NotImplementedError

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        """What is sent instead of the update of params, and the new memory; one method after the other.

        ``update`` is what the method before sent. Private and frozen parts of it are zero.
        """
        raise NotImplementedError

    def entries(self, sent: int, size: int) -> int:
        """How many entries of an array of that size are sent after ``upload``, of which ``sent`` were before it."""
        del size
        return sent

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        """New memory, and a report that is summed over the cohort; a client whose report is dropped adds zero.

        The memory of a client outside the cohort stays as it is.
        """
        return view.memory, ()

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        """What the server keeps after a round, from the sum of the cohort's reports."""
        del report
        return shared

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        """The update that the server makes, from the mean of the uploads; ``shared`` is what ``combine`` returned."""
        raise NotImplementedError

    def measure(self, view: FinishView) -> PyTree:
        """A client's report, summed over the cohort, on the server's new model: ``view.trained``."""
        raise NotImplementedError

    def apply(self, variables: Variables, measured: PyTree, model: Model) -> Variables:
        """The server's new model after the cohort has measured it."""
        raise NotImplementedError

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        """What the server keeps, once its model is the one ``after``; ``measured`` is () without ``measure``."""
        raise NotImplementedError

    def evaluated(self, variables: Variables, shared: PyTree, model: Model) -> Variables:
        """The model that is evaluated, of what the server keeps."""
        raise NotImplementedError


class Regularizer(Method):
    """A method that adds terms to the loss, at one strength unless it says otherwise by ``strengths``."""

    strengths = ("strength",)

    def check(self) -> None:
        """Raises UserError for values that make no sense."""
        check_fields(self)
        for name in self.strengths:
            if getattr(self, name) is not None:  # which the field says that it may be
                check_value(f"{type(self).__name__}: {name}", getattr(self, name), NonNegative)
