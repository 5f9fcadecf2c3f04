"""The interface of a method: one published idea, written as the hooks that it adds to federated averaging.

A subclass of ``Method`` is a frozen dataclass. Its numbers (strength, temperature) are pytree leaves, so changing one
does not recompile; its choices (variant names, flags) are declared with ``option`` and are static. It overrides the
hooks that it needs; a hook that no method overrides costs nothing. Hooks are pure and written for one client:

    init_shared, init_memory    initial state at the server (sent to all clients) and at a client
    batch                       the batches that a client trains on instead of its own
    receive                     the model from which local training starts
    init_carry, carry           a value that is passed from step to step of local training
    task, penalty               the loss that is minimised, and terms that are added to it
    frozen                      other models whose outputs the loss reads
    gradient, correct, decay    how the gradient is computed, and what the local optimizer receives
    upload, finish              the upload instead of the update; a client's new memory and report
    corrupt_uploads             the uploads that arrive instead of the cohort's
    combine_uploads             the result that replaces their weighted mean
    combine                     the server's new state
    perturb, noise              noise on the mean upload, and its privacy accounting
    aggregate                   the server's update
    measure, apply              reports of clients on the server's model, and the model computed from them
    after_round                 the server's state once its model is updated
    dispatch                    each client's state, computed at the server from the states of all clients
    evaluated                   the model that is evaluated
    personal, predict           the model that a client uses, and its predictions

A method may also declare how clients are weighted (``weighting``), which part of the network is private (``private``),
which parts are trained one after the other (``phases``), which examples are held out (``validation``), requirements on
the model (``needs``), and the methods with which it cannot be combined (``excludes``).

A new method is a new file with one class; no other file has to be edited.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, NamedTuple, dataclass_transform

import chex
import jax
import jax.numpy as jnp
from flax import linen, struct

from fedjax_collapse.core.records import Batch, Client, Key, Outputs, PyTree, Scalar, UserError, Variables
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.local_training import LocalTraining, Phase
from fedjax_collapse.schema.options import NonNegative, check_fields, check_value
from fedjax_collapse.schema.user_code import check_signature


class Term(NamedTuple):
    """One term of the local loss: ``strength * value`` is minimised, ``value`` is logged."""

    strength: Scalar
    value: jax.Array


class Noise(NamedTuple):
    """Noise that a method adds to the sum of the cohort's uploads, for privacy accounting."""

    multiplier: float  # standard deviation, divided by the largest norm of an upload
    cohort: float  # expected number of clients in a round
    bands: int = 1  # rounds over which it is correlated; a client may take part in one of them


@dataclasses.dataclass(frozen=True)
class RoundView:
    """Data about one client in one round."""

    server: Variables  # the received model, with the client's private parts
    shared: PyTree  # this method's state at the server
    memory: PyTree  # this method's state at the client
    round: jax.Array  # 0 in the first round
    client: Client
    class_counts: jax.Array | None  # [classes] int32, the examples of each class that the client trains on, or None
    training: LocalTraining
    model: Model
    carry: PyTree  # passed from step to step by this method; () before and after local training


@dataclasses.dataclass(frozen=True)
class ClientView(RoundView):
    """Data and functions at a client before or after its local training.

    ``sum_over_batches(summarize)`` returns the sum of ``summarize(batch)`` over the client's data, each row once.

    ``over_batches(body, carry, first, size)`` returns ``carry`` after ``carry = body(carry, batch)`` for batches of the
    client's examples in their order, each once: of ``size`` examples from ``first`` on, by default of all. Examples
    that are held out come last: ``over_batches(body, carry, client.size, client.held_out)``.

    ``train(start, methods, **changes)`` returns the variables after local training from ``start``, of which nothing is
    sent. It has the batches of the client's local training, and as loss the task's loss and the terms of all methods
    that change nothing but the loss. ``methods``, by name, are added for this training. ``changes`` replace fields of
    ``LocalTraining``. With ``carried=True`` the method itself is added, and its last carry is returned as well.
    """

    key: Key  # for this method in this round
    over_batches: Callable[..., PyTree]
    sum_over_batches: Callable[[Callable[[Batch], PyTree]], PyTree]
    train: Callable[..., PyTree]

    def sum_over_data(
        self, variables: Variables, summarize: Callable[[Outputs, Batch], PyTree], train: bool = False
    ) -> PyTree:
        """Returns the sum of ``summarize(outputs, batch)`` over the client's data; ``outputs`` of ``variables``."""
        return self.sum_over_batches(lambda batch: summarize(self.model.apply(variables, batch, train)[0], batch))


@dataclasses.dataclass(frozen=True)
class PredictView(ClientView):
    """Data when a client predicts."""

    batch: Batch  # of own test rows


@dataclasses.dataclass(frozen=True)
class LocalView(RoundView):
    """Data of a loss in one step of one client."""

    params: PyTree  # the params being trained
    outputs: Outputs  # on this batch, in training mode
    batch: Batch
    frozen: dict[str, Outputs]  # on this batch, of the models that ``Method.frozen`` returned
    key: Key  # for this method in this step


@dataclasses.dataclass(frozen=True)
class GradientView(RoundView):
    """Data for the gradient of a step."""

    held: PyTree  # mask of the params that it must not perturb: private to the client, or not trained in this step
    fixed: PyTree  # mask of the params that are not trained in this step
    batch: Batch
    learning_rate: jax.Array  # in this round


@dataclasses.dataclass(frozen=True)
class FinishView(ClientView):
    """Data when a client has finished its local training.

    ``public`` is ``trained`` with the private parts replaced by the server's, and ``update`` is its params minus the
    server's. ``sent`` is the update after the ``upload`` hooks that have run so far (in ``finish``: all of them), 0 in
    the parts that the server does not change.
    """

    trained: Variables
    public: Variables
    update: PyTree
    sent: PyTree
    steps: jax.Array  # number of optimizer steps taken
    learning_rate: jax.Array  # in this round


@dataclasses.dataclass(frozen=True)
class CohortView:
    """Data of the cohort's clients, when all their uploads are given; their order has no meaning."""

    shared: PyTree  # this method's state at the server
    id: jax.Array  # [cohort] identities
    counted: jax.Array  # [cohort] bool, False for padding and for clients whose upload is lost
    weight: jax.Array  # [cohort] aggregation weights; they sum to 1, and are 0 for clients that do not count
    num_clients: jax.Array  # in the whole federation
    round: jax.Array  # 0 in the first round
    key: Key  # [cohort], of each client for this method in this round


@dataclasses.dataclass(frozen=True)
class NoiseView:
    """Data at the server when noise is added to the mean upload."""

    shared: PyTree  # this method's state at the server, as ``combine`` returned it
    report: PyTree  # the sum of the cohort's reports
    expected: jax.Array  # number of clients in a cohort, by which the sum of their uploads was divided
    round: jax.Array  # 0 in the first round
    key: Key  # for this method in this round, the same on all devices


@dataclasses.dataclass(frozen=True)
class DispatchView:
    """Data at the server after a round: the states of all clients, by identity.

    ``private`` are the private parts, by path, and ``memory`` is this method's, each with a leading axis over clients.
    """

    shared: PyTree  # this method's state at the server
    private: dict[str, jax.Array]
    memory: PyTree
    arrived: jax.Array  # [clients] bool, whether the server received the client's upload in this round
    round: jax.Array  # 0 in the first round
    key: Key  # for this method in this round


def exclusive(hook: Callable) -> Callable:
    """Marks a hook that at most one method of an algorithm may override; returns it."""
    hook.is_exclusive = True
    return hook


class Setup(NamedTuple):
    """Training, private part and model that a method is combined with."""

    training: LocalTraining  # with the phases and frozen parts that methods declare
    private: str  # everything that clients keep private
    model: Model
    num_clients: int | None = None  # in the whole federation; None in ``check_with``


class Exclusion(NamedTuple):
    """Methods that a method excludes: those that have all of some hooks or attributes."""

    hooks: tuple[str, ...]  # of the excluded method; () is any
    reason: str  # for a message; ``{own}`` and ``{other}`` are the names of the two methods
    when: str | None = None  # the ``when_measured`` of the other method; None is any
    is_earlier: bool = False  # whether only methods that come earlier are excluded


# of a method whose ``aggregate`` needs the mean of the uploads
NEEDS_MEAN = tuple(
    Exclusion((hook,), "the server step of {own} needs the mean of the uploads, which {other} replaces; leave one out")
    for hook in ("corrupt_uploads", "combine_uploads")
)


def check_returned(method: str, hook: str, value: PyTree, like: PyTree) -> PyTree:
    """Returns ``value``, the result of a method's hook, after a check against ``like``, the hook's argument.

    Raises:
        UserError: if structure, shapes or dtypes differ.
    """
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(like, value)
    except (AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"method {method}: its {hook} returned another tree than it received: {reason}") from error
    return value


@dataclass_transform()
class Method:
    """Base class: no state, and hooks that do nothing. Subclasses are final; they do not call ``super``."""

    weighting: str | None = None  # of clients, if not by size; see ``FedAvg.weighting``
    needs: tuple[str | type[linen.Module], ...] = ()  # of the model: ``classes``, ``views``, ``adapters``, ``levels``
    # (which ``penalty`` reads in ``view.outputs.levels``), or a head of ``nn/heads``
    not_sent: tuple[str, ...] = ()  # patterns of paths that are not sent (``training/communication.py``)
    reports_update: tuple[str, ...] = ()  # patterns of paths of its report that are the update times a number
    scales_upload: bool = False  # whether its ``upload`` multiplies the update by a number
    density: float | None = None  # fraction of an array's entries that are sent after ``upload``; None is unchanged
    phases: Annotated[tuple[Phase, ...], "has phases of its own"] = ()  # which replace ``LocalTraining.epochs``
    validation: Annotated[float, "holds out examples"] = 0.0  # fraction of a client's examples, the last ones, rounded
    # down: size, weight, class counts, steps and sums over data are of the others
    dispatch_reads: tuple[str, ...] = ("*",)  # patterns of paths that ``dispatch`` reads from clients,
    dispatch_makes: tuple[str, ...] = ("*",)  # writes for clients,
    dispatch_keeps: tuple[str, ...] = ()  # or reads and writes alone: ``private/...`` and ``memory/...``
    makes_adapters: Annotated[bool, "makes the server's adapters"] = False  # whether ``aggregate`` computes them
    moved: str = "none"  # the part that only the server changes
    received: str = "none"  # the frozen part that ``receive`` changes
    private: Annotated[str, "keeps a part of the network"] = "none"  # that stays at clients, like ``FedAvg.private``
    freeze: str = "none"  # the part of the network that is never trained, in addition to ``LocalTraining.freeze``
    remembered: str | None = None  # the part that ``init_memory`` receives; None is the whole model
    stores_common: bool = False  # whether memory of params that all clients always share is stored
    excludes: tuple[Exclusion, ...] = ()  # the methods with which it cannot be combined
    when_measured: str = "round"  # when clients ``measure`` the server's model: ``start``, ``round`` or ``evaluation``
    unused: tuple[str, ...] = ()  # hooks that are overridden, but not used with these options
    strengths: tuple[str, ...] = ()  # fields that scale the method; if all are 0, it has no effect

    def __init_subclass__(cls) -> None:
        """Makes each subclass a frozen dataclass and a pytree, as ``flax.struct.dataclass`` does."""
        struct.dataclass(cls)

    def check(self) -> None:
        """Raises UserError for invalid field values; called once before a run, outside compiled code."""
        check_fields(self)

    def check_with(self, setup: Setup) -> None:
        """Raises UserError if the method does not support the local training, private part or model; called once."""

    def check_cohort(self, cohort_size: int, num_clients: int) -> None:
        """Raises UserError if the method does not support cohorts of this many of all clients; called once."""

    def enabled(self) -> bool:
        """Returns False if all strengths are 0; the method is then left out of the compiled program."""
        strengths = [getattr(self, name) for name in self.strengths]
        return not strengths or any(strength != 0 for strength in strengths)

    def has(self, hook: str) -> bool:
        """Returns whether the method overrides the hook and uses it."""
        return hook not in self.unused and getattr(type(self), hook) is not getattr(Method, hook)

    def makes_own(self) -> bool:
        """Whether clients use personal models because of this method, apart from private parts."""
        return any(map(self.has, ("receive", "personal", "predict")))

    def is_loss(self) -> bool:
        """Whether the method changes the loss of local steps and nothing else of them."""
        changes_steps = any(map(self.has, ("gradient", "correct", "decay", "phases")))
        return (self.has("task") or self.has("penalty")) and not changes_steps

    def init_memory(self, variables: Variables, shapes: Outputs, setup: Setup | None = None) -> PyTree:
        """Returns the initial memory of one client. ``shapes``: features [1, d] and logits [1, classes].

        A method whose memory depends on the number of clients, or on the private part, also takes ``setup``.

        ``variables`` is the initial model, or with ``remembered`` these params by path. Params that no client ever
        changes, such as the base of a network with adapters, are None when the stored memory is initialised. In a
        round, memory has the leaves that are computed from these params; a round must not change them, which is
        checked. With ``stores_common``, or ``setup``, all memory is stored.
        """

    def init_shared(self, variables: Variables, shapes: Outputs, setup: Setup | None = None) -> PyTree:
        """Returns the initial state of the server, which every client receives; arguments as in ``init_memory``."""

    def frozen(self, server: Variables, shared: PyTree, memory: PyTree) -> dict[str, Variables]:
        """Returns models whose outputs on each batch, in evaluation mode, ``penalty`` reads from ``view.frozen``.

        The models are constant in a round, so each runs once over the client's examples, not once per epoch.
        """

    def batch(self, batch: Batch, view: RoundView) -> Batch:
        """Returns the batch of the client's training examples that replaces ``batch``, of the same shapes.

        Local training, sums over a client's data and class counts are computed from the new batches; for class counts
        ``batch`` has all examples and ``view.class_counts`` is None. Methods are applied in order. Rows with
        ``batch.mask`` False are padding.
        """

    @exclusive
    def receive(self, view: ClientView) -> tuple[Variables, PyTree]:
        """Returns the model from which the client starts its local training, and the new memory.

        Otherwise training starts from ``view.server``. Before an evaluation every client computes this model, too.
        """

    def init_carry(self, view: RoundView) -> PyTree:
        """Returns ``view.carry`` of the first step of a client's round; ``finish`` reads that after the last step."""

    def carry(self, view: LocalView) -> PyTree:
        """Returns ``view.carry`` of the next step, from this step's outputs."""

    @exclusive
    def task(self, view: LocalView) -> jax.Array:
        """Returns the loss of a batch that replaces the task's loss."""

    def penalty(self, view: LocalView) -> dict[str, Term]:
        """Returns the terms that are added to the loss of one step, by name."""

    @exclusive
    def gradient(self, gradient_of: Callable[..., PyTree], params: PyTree, view: GradientView) -> PyTree:
        """Returns the gradient of a step, from one or more calls of ``gradient_of(params)`` on the same batch and key.

        ``gradient_of(params, mask)`` is the gradient on the rows of the batch with ``mask`` [batch] True. BatchNorm's
        running statistics and the metrics come from the first call. The gradient is 0 in parts that are not trained. A
        method that overrides ``init_carry`` but not ``carry`` returns the gradient and the new carry.
        """

    def correct(self, gradient: PyTree, params: PyTree, view: RoundView) -> PyTree:
        """Returns the corrected gradient, before clipping. Corrections of private parts are ignored."""

    def decay(self, view: RoundView) -> Scalar:
        """Returns weight decay, applied after clipping, in addition to the weight decay of ``training``."""

    def upload(self, update: PyTree, view: FinishView) -> tuple[PyTree, PyTree]:
        """Returns the tree that is sent instead of ``update``, and the new memory. Methods are applied in order.

        ``update`` is the output of the previous method. Its private and frozen parts are zero.
        """

    @exclusive
    def corrupt_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        """Returns the uploads that the server receives in place of ``stacked``, params [cohort, ...].

        ``stacked`` is 0 where ``view.counted`` is False, and the result there is ignored. The engine holds the uploads
        of a whole cohort only for this hook and ``combine_uploads``.
        """

    @exclusive
    def combine_uploads(self, stacked: PyTree, view: CohortView) -> PyTree:
        """Returns the result that replaces the weighted mean of the uploads ``stacked``, params [cohort, ...].

        ``stacked`` is 0 where ``view.counted`` is False. BatchNorm's running statistics are still averaged, reports
        summed.
        """

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        """Returns the new memory, and a report, which is summed over the cohort.

        A client whose report is dropped adds zero. The memory of clients outside the cohort does not change.
        """

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        """Returns the server's new state from the sum of the cohort's reports."""

    @exclusive
    def perturb(self, update: PyTree, view: NoiseView) -> tuple[PyTree, PyTree]:
        """Returns the mean upload with noise, and the server's new state, before any ``aggregate``.

        ``update`` has the parts that clients send. Settings that break the noise's privacy are rejected
        (``privacy/guarantee.py``). The method must override ``noise`` as well.
        """

    def noise(self, expected: float) -> Noise:
        """Returns the noise of ``perturb`` for privacy accounting, for an expected number of clients in a round.

        Called outside compiled code. Raises UserError if no accounting is known. A class that inherits ``noise`` is
        rejected, since it may change the mechanism.
        """

    def aggregate(self, update: PyTree, shared: PyTree, report: PyTree) -> PyTree:
        """Returns the server's update, from the mean upload ``update``; ``shared`` is the output of ``combine``."""

    def measure(self, view: FinishView) -> PyTree:
        """Returns a client's report on the server's model, ``view.trained``, which is summed over the clients.

        ``when_measured`` is ``round``: the cohort, on each round's new model; ``start``: all clients, on the initial
        model; or ``evaluation``: all clients, on the last model before each evaluation. The sum is passed to ``apply``,
        except before an evaluation, and then to ``after_round``, which is called only then.
        """

    def apply(self, variables: Variables, measured: PyTree, model: Model) -> Variables:
        """Returns the server's model, from the measured model and the sum of the clients' ``measure``.

        Private parts do not change, nor, except at the ``start``, do frozen parts.
        """

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        """Returns the server's state after its model was updated; ``measured`` is () without ``measure``.

        ``before`` is the model that was sent, or with ``start`` and ``evaluation`` the measured model.
        """

    def dispatch(self, view: DispatchView) -> tuple[dict[str, jax.Array], PyTree]:
        """Returns the new ``view.private`` and ``view.memory`` of all clients, which the server computes after a round.

        The server knows a client's state as of the last upload that arrived. The states of all clients have to fit on a
        device.
        """

    @exclusive
    def personal(self, view: ClientView) -> Variables:
        """Returns the model that the client uses and own tests score; ``view.server`` is the received model."""

    @exclusive
    def predict(self, outputs: Outputs, view: PredictView) -> jax.Array:
        """Returns the logits [batch, classes] with which the client predicts, from its model's outputs in own tests.

        ``view.server`` is the received model; in tests of the model after the client's last round, that model.
        """

    def evaluated(self, variables: Variables, shared: PyTree, model: Model) -> Variables:
        """Returns the model that is evaluated, from the server's variables and state."""


def exclusives() -> dict[str, str]:
    """Returns, for each hook or attribute that at most one method of an algorithm may have, its effect in words.

    Such hooks are marked by ``exclusive``, attributes by an annotation with this text.
    """
    hooks = {name: f"has a {name} of its own" for name, value in vars(Method).items() if hasattr(value, "is_exclusive")}
    texts = {name: getattr(hint, "__metadata__", None) for name, hint in Method.__annotations__.items()}
    return hooks | {name: text for name, (text,) in filter(all, texts.items())}


# functions of the contract -> the names of their arguments
_HOOKS = {name: [*inspect.signature(of).parameters][1:] for name, of in inspect.getmembers(Method, inspect.isfunction)}
_EARLIER = {  # hooks and attributes of earlier versions -> their replacements
    "first_report": "measure, with when_measured = 'start'",
    "first_model": "apply, with when_measured = 'start'",
    "starts_with_report": "when_measured = 'start'",
    "measures_all": "when_measured = 'evaluation'",
    "init_memory_among": "init_memory(variables, shapes, setup), with setup.num_clients",
    "share_private": "init_shared(variables, shapes, setup), with setup.private",
    "own_parts": "dispatch(view), which returns the private parts",
    "held_out": "validation, the fraction of the examples that is held out",
    "entries": "density, the fraction of the entries that is sent",
    "check_among": "excludes",
    "needs_mean": "excludes = NEEDS_MEAN",
    **dict.fromkeys(("needs_classes", "needs_head", "needs_adapters", "needs_levels"), "needs = ('classes', ...)"),
}


def takes_setup(hook: Callable) -> bool:
    """Returns whether a method's ``init_shared`` or ``init_memory`` takes ``setup``."""
    return len(inspect.signature(hook).parameters) > 2


def initial_state(hook: Callable, variables: Variables, setup: Setup) -> PyTree:
    """Returns the result of a method's ``init_shared`` or ``init_memory``."""
    arguments = variables, setup.model.initial_shapes()._replace(levels=()), setup
    return hook(*arguments[: 3 if takes_setup(hook) else 2])


def check_hooks(name: str, method: Method) -> None:
    """Raises UserError for a hook of an earlier version, or one that does not take the arguments of its calls."""
    for earlier, instead in _EARLIER.items():
        if hasattr(method, earlier):
            raise UserError(f"method {name}: {earlier} is of an earlier version, expected {instead}")
    if callable(method.phases):
        raise UserError(f"method {name}: phases is a function, expected a property or a tuple")
    for hook, given in _HOOKS.items():
        if method.has(hook):
            own = getattr(method, hook)
            needs_all = hook not in ("init_shared", "init_memory") or takes_setup(own)
            check_signature(f"method {name}: {hook}", own, *(given if needs_all else given[:2]))


class Regularizer(Method):
    """A method that adds terms to the loss, scaled by ``strength`` or by the fields named in ``strengths``."""

    strengths = ("strength",)

    def check(self) -> None:
        """Raises UserError for invalid field values."""
        check_fields(self)
        for name in self.strengths:
            if getattr(self, name) is not None:  # a field that is annotated as optional
                check_value(f"{type(self).__name__}: {name}", getattr(self, name), NonNegative)


class OverClients(Method):
    """A method whose state at the server is the mean over all clients of their memory, at first 0.

    ``finish`` reports the client's part of the change of this mean.
    """

    def init_memory(self, variables: Variables, shapes: Outputs) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.params)

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return self.init_memory(variables, shapes)

    def combine(self, shared: PyTree, report: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, shared, report)


class FromReceived(Method):
    """A method whose loss reads the received model's outputs, ``view.frozen["received"]``."""

    def frozen(self, server: Variables, shared: PyTree, memory: PyTree) -> dict[str, Variables]:
        return {"received": server}
