"""Federated averaging, to which methods are added; with a server optimizer also FedAvgM, FedAdagrad, FedAdam, FedYogi.

    the cohort trains from w;   w <- w + server_optimizer(mean_k w_k - w),   weights N_k / sum N_k

McMahan et al. (2017); Hsu et al. (2019) for FedAvgM; Reddi et al. (2021) for the adaptive optimizers. The server
optimizer acts on params, and BatchNorm's running statistics are averaged. The released code of FedDecorr and MOON
applies server momentum to the statistics as well (``optimized="all"``), which can make a running variance negative.
"""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Mapping

import jax
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import ClientState, PyTree, UserError, Variables
from fedjax_collapse.methods.base import Method, check_hooks
from fedjax_collapse.nn.inspection import layers_of_class
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.optim.optimizers import check_matrices, check_optimizer
from fedjax_collapse.schema.options import Part, check_fields, option

# hooks that at most one method may have
_EXCLUSIVE = (
    "first_model", "task", "gradient", "phases", "held_out", "receive", "corrupt_uploads", "combine_uploads",
    "perturb", "personal", "predict",
)  # fmt: skip


@jax.tree_util.register_pytree_with_keys_class
class _ByName(OrderedDict):
    """Methods in their order, a dict of which would be sorted inside compiled code.

    Structures of trees with dataclasses of other classes, but equal static fields, are equal to JAX 0.10.2, which then
    sometimes runs the program of the other class. So here the classes are part of the structure.
    """

    def tree_flatten_with_keys(self):
        children = [(jax.tree_util.DictKey(name), method) for name, method in self.items()]
        return children, (tuple(self), tuple(map(type, self.values())))

    @classmethod
    def tree_unflatten(cls, names_and_classes, methods):
        return cls(zip(names_and_classes[0], methods, strict=True))


@struct.dataclass
class FedAvg:
    """Local training, methods by name, and the server's step.

    Args:
        training: local training on the clients.
        methods: SCAFFOLD, FedDecorr, ..., by name. They change uploads in this order; their terms are added to the loss
            in the order of their names. Methods that contradict each other are rejected.
        server_optimizer: a ``jax.tree_util.Partial`` of an optax constructor, such as ``Partial(optax.sgd, 1.0,
            momentum=0.5)`` for FedAvgM or ``Partial(damped_momentum, 0.5)`` for its damped form; its numbers are
            traced. None replaces the model by the mean.
        optimized: whether the server optimizer acts on ``params`` only or on ``all``, BatchNorm's statistics included.
        weighting: of the uploads: by the clients' number of examples (``size``), ``equal``, by their number of whole
            ``batches`` (FedMR's released code), or equal and divided by the ``expected`` number of clients in a round,
            whoever comes; ``default`` is by size, unless a method declares another weighting.
        private: the part of the network that every client keeps to itself (``core/masks.py``), such as ``batch_norm``
            in FedBN (Li et al., 2021), in addition to the part that a method keeps private (FedPer, FedRep, LG-FedAvg).
            The server's copy of it stays as initialised, and no upload contains it.
        keep_trained: whether each client keeps its model at the end of its last round, which own tests then score in
            the stage ``trained``; takes the memory of a model for every client.

    Examples:
        >>> algorithm = FedAvg(LocalTraining(epochs=2), methods={"scaffold": Scaffold(), "feddecorr": FedDecorr(0.1)})
        >>> fedavgm = FedAvg(server_optimizer=jax.tree_util.Partial(optax.sgd, 1.0, momentum=0.9))
        >>> fedper = FedAvg(private="head")
    """

    training: LocalTraining = LocalTraining()
    methods: Mapping[str, Method] = struct.field(default_factory=dict)
    server_optimizer: jax.tree_util.Partial | None = None
    optimized: str = option("params", choices=("params", "all"), server_optimizer=...)
    weighting: str = option("default", choices=("default", "size", "equal", "batches", "expected"))
    private: Part = option("none")
    keep_trained: bool = option(False)

    def __post_init__(self):
        if isinstance(self.methods, Mapping):
            object.__setattr__(self, "methods", _ByName(self.methods))

    def check(self, model: Model | None = None) -> None:
        """Checks all hyper-parameters, their combination and, if given, the model.

        Raises:
            UserError: names a value that is invalid, or a part that the model lacks.
        """
        check_fields(self)
        if self.server_optimizer is not None:
            check_optimizer("FedAvg: server_optimizer", self.server_optimizer)
        self.training.check()
        for name, method in self.methods.items():
            check_hooks(name, method)
            method.check()
        for hook in _EXCLUSIVE:
            if len(found := self.having(hook)) > 1:
                raise UserError(f"methods {' and '.join(found)}: each has a {hook} of its own, expected at most one")
        for hook, setting, is_given in (
            ("task", "task_loss", self.training.task_loss is not None),
            ("phases", "phases", self.training.phases),
            ("phases", "steps", self.training.steps is not None),
            ("phases", "momentum_reset=False", not self.training.momentum_reset),
        ):
            if is_given and (found := self.having(hook)):
                raise UserError(f"method {next(iter(found))}: training.{setting} is given too, expected one of them")
        if len(found := [name for name, method in self.methods.items() if method.private != "none"]) > 1:
            raise UserError(f"methods {' and '.join(found)}: each keeps a part of the network, expected at most one")
        for name, method in self.methods.items():
            if method.has("carry") and not method.has("init_carry"):
                raise UserError(f"method {name}: it has a hook carry, expected init_carry as well")
            if method.has("first_model") and not method.starts_with_report():
                raise UserError(f"method {name}: it has a hook first_model, expected first_report as well")
            method.check_among(self.methods)
            self._check_factors(name, method)
            self._check_mean(name, method)
        if model is not None:
            self._check_with(model)

    def _check_factors(self, name, method):
        """Raises UserError if something changes what a method makes the server's adapters of, or these, afterwards."""
        if not (method.needs_adapters and method.has("aggregate")):
            return
        if self.server_optimizer is not None:
            raise UserError(f"method {name}: it makes the server's adapters itself, expected no server optimizer")
        found = [other for other in self.having("upload") if other != name]
        if method.sends_factors and found:
            raise UserError(
                f"methods {name} and {found[0]}: the former makes the server's adapters of the clients' "
                "trained ones, expected no method that changes uploads"
            )

    def _check_mean(self, name, method):
        """Raises UserError if a method needs the uploads' mean, or makes no use of it, and another one replaces it."""
        makes_adapters = method.needs_adapters and method.has("aggregate")
        for other in self._stacking:
            if method.needs_mean or makes_adapters:
                raise UserError(
                    f"methods {name} and {other}: the former's server step is not made of the mean upload alone, "
                    "expected no method that sees all uploads"
                )

    def _check_with(self, model):
        network = f"network {type(model.module).__name__}"
        if getattr(model.initial_shapes(), "features", None) is None:
            raise UserError(f"{network}: it returns no features, expected Outputs(features [batch, d], logits)")
        for name, method in self.methods.items():
            if method.needs_adapters and model.adapters is None:
                raise UserError(
                    f"method {name}: {network} has no adapters; set network.adapters, in Python "
                    "Model(..., adapters=LoRA(...))"
                )
            if method.needs_classes and not model.task.is_classification:
                raise UserError(f"method {name}: the model's task has no classes, expected one of classification")
            _check_head(name, method, model)
        if self.weights_by == "expected" and (averaged := self._averaged_statistics(model)):
            raise UserError(
                f"{network}: running statistics ({averaged[0]}) are in the mean, whose weights do not sum to 1 with "
                "weighting 'expected'; choose a network without BatchNorm, or private='batch_norm'"
            )
        training = self.local_training
        if model.adapters is not None and "base" not in training.freeze.split("+"):
            raise UserError(
                f"training.freeze {self.training.freeze!r}: {network} has adapters, expected 'base' among its parts"
            )
        parts = [("private", self.private), ("training.freeze", self.training.frozen_part(at_server=True))]
        parts += [("training.phases", phase.part) for phase in training.phases]
        for name, method in self.methods.items():
            declared = method.private, method.freeze, method.moved, method.received, method.remembered
            parts += [(f"method {name}", part) for part in declared if part is not None]
        for setting, part in parts:
            try:
                model.mask(part)
            except UserError as error:
                raise UserError(f"{setting}: {error}") from error
        for what, made_by, untrained in (
            ("LocalTraining: optimizer", training.optimizer, model.mask(training.frozen_part())),
            ("FedAvg: server_optimizer", self.server_optimizer, self.unchanged_by_server(model)),
        ):
            if made_by is not None:
                check_matrices(what, made_by, masks.without(untrained, model.variable_shapes()).params)
        for method in self.methods.values():
            method.check_with(training, self.private_part, model)
        if self._stacking and all(jax.tree.leaves(self.not_uploaded(model).params)):
            raise UserError(f"method {self._stacking[0]}: clients upload no params to combine; leave it out")

    def _averaged_statistics(self, model):
        """Returns the paths of the running statistics that clients send."""
        shapes = model.variable_shapes()
        return list(masks.by_path(masks.without(self.not_uploaded(model), shapes).batch_stats))

    def having(self, hook: str) -> dict[str, Method]:
        """Returns the methods that override the hook, in their order."""
        return {name: method for name, method in self.methods.items() if method.has(hook)}

    @property
    def starting(self) -> dict[str, Method]:
        """The methods that report on the initial model before the first round."""
        return {name: method for name, method in self.methods.items() if method.starts_with_report()}

    def measuring(self, by_all: bool = False) -> dict[str, Method]:
        """Returns the methods that measure the new model.

        Args:
            by_all: whether all clients measure it, before an evaluation, rather than the cohort, in each round.
        """
        return {name: method for name, method in self.having("measure").items() if method.measures_all() == by_all}

    def enabled(self) -> "FedAvg":
        """Returns the algorithm without methods that have no effect, and with a momentum of None where it is 0.

        If they were left in, ``0 * term`` would make XLA fuse, and therefore round, other operations differently, and
        SGD would carry a buffer for each param of a client.
        """
        enabled = {name: method for name, method in self.methods.items() if method.enabled()}
        training = self.training.replace(momentum=None) if self.training.momentum == 0 else self.training
        return dataclasses.replace(self, methods=enabled, training=training)

    @property
    def private_part(self) -> str:
        """Everything that clients keep private: ``private`` and the part that a method declares."""
        parts = [part for part in (self.private, *(m.private for m in self.methods.values())) if part != "none"]
        return "+".join(parts) or "none"

    @property
    def is_personal(self) -> bool:
        """Whether clients use models of their own."""
        return self.private_part != "none" or self._makes_own

    @property
    def has_global(self) -> bool:
        """Whether the server's model can be used besides the clients' own ones, which a method makes from it."""
        return self.private_part != "all" and self._makes_own

    @property
    def _makes_own(self):
        return any(method.makes_own() for method in self.methods.values())

    @property
    def local_training(self) -> LocalTraining:
        """``training`` with the phases and the frozen parts of methods that declare them."""
        training = self.training
        parts = [part for part in (training.freeze, *(m.freeze for m in self.methods.values())) if part != "none"]
        if parts:
            training = training.replace(freeze="+".join(parts))
        for method in self.having("phases").values():
            training = training.replace(phases=method.phases())
        return training

    @property
    def needs_levels(self) -> bool:
        """Whether a method uses intermediate representations of the network."""
        return any(method.needs_levels for method in self.methods.values())

    @property
    def sends_updates(self) -> bool:
        """Whether clients send updates, because of methods or weights; otherwise they send their models."""
        is_changed = bool(self.having("upload") or self.having("aggregate"))
        return is_changed or self.stacks_uploads or self.weights_by == "expected"

    @property
    def stacks_uploads(self) -> bool:
        """Whether the uploads of a whole cohort are held at once, because a method sees all of them."""
        return bool(self._stacking)

    @property
    def _stacking(self):
        return [name for hook in ("corrupt_uploads", "combine_uploads") for name in self.having(hook)]

    @property
    def weights_by(self) -> str:
        """The ``weighting`` with ``default`` resolved."""
        if self.weighting != "default":
            return self.weighting
        return next((m.weighting for m in self.methods.values() if m.weighting), "size")

    def trained_sizes(self, sizes: jax.Array) -> jax.Array:
        """Returns how many of its ``sizes`` [clients] examples each client trains on, without those held out."""
        for method in self.having("held_out").values():
            return sizes - jax.vmap(method.held_out)(sizes)
        return sizes

    def own_parts(self, shared: Mapping[str, PyTree], client: ClientState) -> dict[str, jax.Array]:
        """Returns, by path, the private parts with which a client starts a round and is evaluated."""
        private = client.private
        for name, method in self.having("own_parts").items():
            private = method.own_parts(private, shared[name], client.memory[name])
        return private

    def unchanged_by_server(self, model: Model) -> Variables:
        """Returns the mask of what the server never changes: private and frozen parts."""
        return masks.union(model.mask(self.private_part), self.never_changed(model, at_server=True))

    def never_changed(self, model: Model, at_server: bool = False) -> Variables:
        """Returns the mask of what neither clients nor, ``at_server``, the server ever change."""
        frozen = model.mask(self.local_training.frozen_part(at_server))
        for method in self.methods.values():
            frozen = masks.minus(frozen, model.mask(method.moved))
        return frozen

    def common_to_clients(self, model: Model, always: bool = False) -> Variables:
        """Returns the mask of what the models of all clients have in common in a round, or, ``always``, in all rounds.

        It is what they receive and do not train.
        """
        frozen = self.never_changed(model) if always else model.mask(self.local_training.frozen_part())
        own = self.private_part, *(method.received for method in self.methods.values())
        return functools.reduce(masks.minus, map(model.mask, own), frozen)

    def not_uploaded(self, model: Model) -> Variables:
        """Returns the mask of what no client sends: what the server never changes, and what only the server does."""
        moved = (model.mask(method.moved) for method in self.methods.values())
        return functools.reduce(masks.union, moved, self.unchanged_by_server(model))


def _check_head(name, method, model):
    """Raises UserError if the network lacks the head that the method needs; heads are named by their files."""
    needed = method.needs_head
    if needed is not None and not layers_of_class(model, needed):
        raise UserError(
            f"method {name}: network {type(model.module).__name__} has another head; set "
            f"network.head={needed.__module__.rpartition('.')[2]!r}, in Python head=nn.heads.{needed.__name__}"
        )
