"""Federated averaging, what methods are added to; by its server optimizer also FedAvgM, FedAdagrad, FedAdam, FedYogi.

    cohort trains from w;   w <- w + server_optimizer(mean_k w_k - w),   weights N_k / sum N_k

McMahan et al. (2017); Hsu et al. (2019) for FedAvgM; Reddi et al. (2021) for the adaptive ones. The server optimizer
acts on params, and BatchNorm's running statistics are averaged plainly. The released FedDecorr and MOON code applies
server momentum to the statistics as well (``optimized="all"``), which can make a running variance negative.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping

import jax
from flax import struct

from fedjax_collapse.core import masks
from fedjax_collapse.core.options import check_fields, option
from fedjax_collapse.core.records import ClientState, PyTree, UserError, Variables
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training.local_training import LocalTraining
from fedjax_collapse.training.optimizers import check_optimizer

_EXCLUSIVE = ("task", "gradient", "phases")  # hooks that one method alone may have


@struct.dataclass
class FedAvg:
    """Local training, methods by name, and what the server makes of the mean of the uploads.

    ``methods``: SCAFFOLD, FedDecorr, ...: what one says may not contradict another. Uploads are changed by one after
    the other, in this order; terms of the loss are added in that of their names.
    ``server_optimizer``: ``jax.tree_util.Partial`` of an optax constructor, such as ``Partial(optax.sgd, 1.0,
    momentum=0.5)`` for FedAvgM or ``Partial(damped_momentum, 0.5)`` for its damped form; its numbers are traced.
    None takes the mean itself.
    ``weighting``: of the clients' uploads, by their number of examples (``size``), all ``equal``, or by their number of
    whole ``batches`` (FedMR's released code); ``default`` is by size, unless a method says otherwise.
    ``private``: the part of the network that every client keeps for itself (``masks.py``), such as ``batch_norm`` in
    FedBN (Li et al., 2021), and what a method keeps as well (FedPer, FedRep, LG-FedAvg). The server's own copy of it
    stays as initialised, and no upload contains it.
    """

    training: LocalTraining = LocalTraining()
    methods: Mapping[str, Method] = struct.field(default_factory=dict)
    server_optimizer: jax.tree_util.Partial | None = None
    optimized: str = option("params", choices=("params", "all"), server_optimizer=...)
    weighting: str = option("default", choices=("default", "size", "equal", "batches"))
    private: str = option("none")

    def __post_init__(self):
        if isinstance(self.methods, Mapping):  # a dict would be sorted inside compiled code
            object.__setattr__(self, "methods", OrderedDict(self.methods))

    def check(self, model: Model | None = None) -> None:
        """Raises UserError, naming the value, if any hyper-parameter makes no sense, alone or with the others, or if
        the model lacks a part that one of them names."""
        check_fields(self)
        if self.server_optimizer is not None:
            check_optimizer("FedAvg: server_optimizer", self.server_optimizer)
        self.training.check()
        for method in self.methods.values():
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
        for method in self.methods.values():
            method.check_among(self.methods)
        if model is not None:
            self._check_with(model)

    def _check_with(self, model):
        name = type(model.module).__name__
        if getattr(model.initial_shapes(), "features", None) is None:
            raise UserError(f"network {name}: it returns no features, expected Outputs(features [batch, d], logits)")
        training = self.local_training
        parts = [("private", self.private), ("training.freeze", training.frozen_part(at_server=True))]
        parts += [("training.phases", phase.part) for phase in training.phases]
        parts += [(f"method {name}", method.private) for name, method in self.methods.items()]
        for setting, part in parts:
            try:
                model.mask(part)
            except UserError as error:
                raise UserError(f"{setting}: {error}") from error
        for name, method in self.methods.items():
            if method.needs_classes and not model.task.is_classification:
                raise UserError(f"method {name}: the model's task has no classes, expected one of classification")
            method.check_with(training, self.private_part, model)

    def having(self, hook: str) -> dict[str, Method]:
        """The methods that have the hook, in their order."""
        return {name: method for name, method in self.methods.items() if method.has(hook)}

    @property
    def starting(self) -> dict[str, Method]:
        """The methods whose first report is on the initial model."""
        return {name: method for name, method in self.methods.items() if method.starts_with_report()}

    def measuring(self, by_all: bool = False) -> dict[str, Method]:
        """The methods whose cohort measures the model in each round, or whose clients all do before an evaluation."""
        return {name: method for name, method in self.having("measure").items() if method.measures_all() == by_all}

    def enabled(self) -> "FedAvg":
        """The algorithm without methods that do nothing: they cost nothing and change nothing, bit for bit.

        Left in, ``0 * term`` would make XLA fuse and so round other operations differently.
        """
        enabled = {name: method for name, method in self.methods.items() if method.enabled()}
        return dataclasses.replace(self, methods=enabled)

    @property
    def private_part(self) -> str:
        """All that clients keep of the network: ``private``, and what a method says."""
        parts = [part for part in (self.private, *(m.private for m in self.methods.values())) if part != "none"]
        return "+".join(parts) or "none"

    @property
    def local_training(self) -> LocalTraining:
        """The local training that is meant: ``training``, in a method's phases if one has any."""
        for method in self.having("phases").values():
            return self.training.replace(phases=method.phases())
        return self.training

    @property
    def needs_levels(self) -> bool:
        """Whether a method looks at the levels of the network's representation."""
        return any(method.needs_levels for method in self.methods.values())

    @property
    def sends_updates(self) -> bool:
        """Whether clients send updates, which methods change; else they send their models, and these are averaged."""
        return bool(self.having("upload") or self.having("aggregate"))

    @property
    def weights_by(self) -> str:
        """The ``weighting`` that is meant."""
        if self.weighting != "default":
            return self.weighting
        return next((m.weighting for m in self.methods.values() if m.weighting), "size")

    def own_parts(self, shared: Mapping[str, PyTree], client: ClientState) -> dict[str, jax.Array]:
        """The private parts by path with which a client starts a round and is scored."""
        private = client.private
        for name, method in self.having("own_parts").items():
            private = method.own_parts(private, shared[name], client.memory[name])
        return private

    def fixed(self, model: Model) -> Variables:
        """The mask of what the server never changes: private parts, and what is frozen."""
        return masks.either(model.mask(self.private_part), model.mask(self.training.frozen_part(at_server=True)))
