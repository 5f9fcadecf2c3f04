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
import jax.numpy as jnp
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.methods.base import Method, Setup, check_hooks, exclusives
from fedjax_collapse.nn.inspection import layers_of_class
from fedjax_collapse.nn.model import Model
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.optim.optimizers import check_matrices, check_optimizer
from fedjax_collapse.schema.options import Part, check_fields, option
from fedjax_collapse.schema.user_code import naming


@jax.tree_util.register_pytree_with_keys_class
class _ByName(OrderedDict):
    """Methods in their order; compiled code would sort a dict.

    JAX 0.10.2 takes tree structures for equal if dataclasses of different classes have equal static fields, and then
    sometimes runs the program of the other class. Here the classes are part of the structure.
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
        optimized: whether the server optimizer changes ``params`` only, or ``all``, with BatchNorm's statistics.
        weighting: weights of uploads: ``equal``; by the clients' number of examples (``size``) or of whole ``batches``
            (FedMR's released code); or equal and divided by the ``expected`` number of clients in a round. ``default``
            is ``size``, unless a method declares another one.
        private: the part of the network that stays at each client (``core/masks.py``), such as ``batch_norm`` in FedBN
            (Li et al., 2021), in addition to private parts of methods. Uploads do not contain it; the server's copy
            stays as initialised.
        keep_trained: whether each client stores its model after its last round, for own tests in the stage ``trained``;
            needs the memory of a model for every client.

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
        actions = exclusives()
        for hook, action in actions.items():
            if len(found := self.having(hook)) > 1:
                raise UserError(f"methods {' and '.join(found)}: each {action}, expected at most one")
        for hook, setting, is_given in (
            ("task", "training.task_loss", self.training.task_loss is not None),
            ("phases", "training.phases", self.training.phases),
            ("phases", "training.steps", self.training.steps is not None),
            ("phases", "training.momentum_reset=False", not self.training.momentum_reset),
            ("makes_adapters", "a server optimizer", self.server_optimizer is not None),
        ):
            if is_given and (found := self.having(hook)):
                why = f"{setting} is given too, and it {actions[hook]}"
                raise UserError(f"method {next(iter(found))}: {why}; expected one of them")
        for hook, needed in (("carry", "init_carry"), ("apply", "measure")):
            if missing := [name for name in self.having(hook) if not self.methods[name].has(needed)]:
                raise UserError(f"method {missing[0]}: it has a hook {hook}, expected {needed} as well")
        for place, (name, method) in enumerate(self.methods.items()):
            for hooks, reason, when, is_earlier in method.excludes:
                for other in list(self.methods)[: place if is_earlier else None]:
                    if other != name and all(other in self.having(hook, when) for hook in hooks):
                        raise UserError(f"methods {name} and {other}: {reason.format(own=name, other=other)}")
        if model is not None:
            self._check_with(model)

    def _check_with(self, model):
        network = f"network {type(model.module).__name__}"
        if getattr(model.initial_shapes(), "features", None) is None:
            raise UserError(f"{network}: it returns no features, expected Outputs(features [batch, d], logits)")
        for name, method in self.methods.items():
            for need in method.needs:
                _check_need(f"method {name}", need, model)
        shapes = model.variable_shapes()
        if self.weights_by == "expected" and (
            averaged := masks.by_path(masks.without(self.not_uploaded(model), shapes).batch_stats)
        ):
            raise UserError(
                f"{network}: running statistics ({next(iter(averaged))}) are in the mean, whose weights do not sum to "
                "1 with weighting 'expected'; choose a network without BatchNorm, or private='batch_norm'"
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
            with naming(setting):
                model.mask(part)
        for what, made_by, untrained in (
            ("LocalTraining: optimizer", training.optimizer, model.mask(training.frozen_part())),
            ("FedAvg: server_optimizer", self.server_optimizer, self.unchanged_by_server(model)),
        ):
            if made_by is not None:
                check_matrices(what, made_by, masks.without(untrained, model.variable_shapes()).params)
        for method in self.methods.values():
            method.check_with(Setup(training, self.private_part, model))
        if self.stacking and all(jax.tree.leaves(self.not_uploaded(model).params)):
            raise UserError(f"method {self.stacking[0]}: clients upload no params to combine; leave it out")

    def having(self, hook: str, when: str | None = None) -> dict[str, Method]:
        """Returns the methods that override the hook, in their order; with ``when`` those measured at this time."""
        having = {name: method for name, method in self.methods.items() if method.has(hook)}
        return {name: method for name, method in having.items() if when in (None, method.when_measured)}

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
        return _joined(self.private, *(method.private for method in self.methods.values()))

    @property
    def is_personal(self) -> bool:
        """Whether clients use personal models."""
        return self.private_part != "none" or self._makes_own

    @property
    def has_global(self) -> bool:
        """Whether the server's model can be used next to personal models, which a method computes from it."""
        return self.private_part != "all" and self._makes_own

    @property
    def _makes_own(self):
        return any(method.makes_own() for method in self.methods.values())

    @property
    def local_training(self) -> LocalTraining:
        """``training`` with the phases and the frozen parts of methods that declare them."""
        freeze = _joined(self.training.freeze, *(method.freeze for method in self.methods.values()))
        phases = next((method.phases for method in self.having("phases").values()), self.training.phases)
        return self.training.replace(freeze=freeze, phases=phases)

    @property
    def sends_updates(self) -> bool:
        """Whether clients send updates, because of methods or weights; otherwise they send their models."""
        is_changed = self.having("upload") or self.having("aggregate") or self.stacking
        return bool(is_changed) or self.weights_by == "expected"

    @property
    def stacking(self) -> list[str]:
        """The methods that read the uploads of a whole cohort at once."""
        return [name for hook in ("corrupt_uploads", "combine_uploads") for name in self.having(hook)]

    @property
    def weights_by(self) -> str:
        """The ``weighting`` with ``default`` resolved."""
        if self.weighting != "default":
            return self.weighting
        return next((m.weighting for m in self.methods.values() if m.weighting), "size")

    def trained_sizes(self, sizes: jax.Array) -> jax.Array:
        """Returns how many of its ``sizes`` [clients] examples each client trains on; others are held out."""
        for method in self.having("validation").values():
            return sizes - jnp.floor(method.validation * sizes + 1e-3).astype(sizes.dtype)
        return sizes

    def unchanged_by_server(self, model: Model) -> Variables:
        """Returns the mask of the variables that the server never changes: private and frozen parts."""
        return masks.union(model.mask(self.private_part), self.never_changed(model, at_server=True))

    def never_changed(self, model: Model, at_server: bool = False) -> Variables:
        """Returns the mask of the variables that no client, nor ``at_server`` the server, ever changes."""
        frozen = model.mask(self.local_training.frozen_part(at_server))
        for method in self.methods.values():
            frozen = masks.minus(frozen, model.mask(method.moved))
        return frozen

    def common_to_clients(self, model: Model, always: bool = False) -> Variables:
        """Returns the mask of the variables that all clients share in a round, or, ``always``, in all rounds.

        Clients receive these variables and do not train them.
        """
        frozen = self.never_changed(model) if always else model.mask(self.local_training.frozen_part())
        own = self.private_part, *(method.received for method in self.methods.values())
        return functools.reduce(masks.minus, map(model.mask, own), frozen)

    def not_uploaded(self, model: Model) -> Variables:
        """Returns the mask of the variables that no client sends: the server never changes them, or it alone does."""
        moved = (model.mask(method.moved) for method in self.methods.values())
        return functools.reduce(masks.union, moved, self.unchanged_by_server(model))


def _joined(*parts):
    """Returns the union of parts of the network."""
    return "+".join(part for part in parts if part != "none") or "none"


def _check_need(what, need, model):
    """Raises UserError if the model lacks a part that a method needs; messages name heads by their files."""
    network = f"network {type(model.module).__name__}"
    if need == "classes" and not model.task.is_classification:
        raise UserError(f"{what}: the model's task has no classes, expected one of classification")
    if need == "views" and model.task.views < 2:
        raise UserError(
            f"{what}: the model's task has one view of an example, expected two; set network.task='self_supervised', "
            "in Python Model(..., task=SELF_SUPERVISED) and head=nn.heads.Siamese"
        )
    if need == "adapters" and model.adapters is None:
        raise UserError(
            f"{what}: {network} has no adapters; set network.adapters, in Python Model(..., adapters=LoRA(...))"
        )
    if need == "levels" and not model.initial_shapes().levels:
        raise UserError(
            f"{what}: {network} offers no levels; sow them as nn.network.as_level does, or set levels='last'"
        )
    if isinstance(need, type) and not layers_of_class(model, need):
        raise UserError(
            f"{what}: {network} has another head; set network.head={need.__module__.rpartition('.')[2]!r}, in Python "
            f"head=nn.heads.{need.__name__}"
        )
