"""Runs of studies, loaded from their folders: model, data, variables and client states.

run = load_run("runs/quickstart/feddecorr/seed0")  # trust=True if its config names custom code
run.predict(run.federation.test.inputs)  # logits [examples, classes]
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import State
from fedjax_collapse.nn.adapters import merged
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.local_models import LocalModels
from fedjax_collapse.schema.annotations import as_array
from fedjax_collapse.training.algorithm import FedAvg

if TYPE_CHECKING:
    import torch


class LoadedRun(NamedTuple):
    """A run, restored from its last checkpoint."""

    model: Model
    federation: Federation
    algorithm: FedAvg
    variables: Variables  # of the model that is evaluated
    state: State  # of the server, with its methods, and of all clients
    config: Mapping[str, Any]  # all values of its arm in its setting
    local: LocalModels  # after the training of a round, before the server's step: run.local[round][client]

    def __repr__(self) -> str:
        network, methods = type(self.model.module).__name__, ", ".join(self.algorithm.methods) or "no methods"
        return f"LoadedRun({network} after round {int(self.state.round)} with {methods}; {self.federation})"

    def predict(self, inputs: np.ndarray | jax.Array, variables: Variables | None = None) -> np.ndarray:
        """Returns the logits [examples, classes] of inputs in the units of the data (images of 0 to 255).

        If every token has a label, [examples, length, classes].

        ``variables`` are of this network; by default those of the run.
        """
        if variables is not None:
            self.model.check_variables("predict: variables", variables)
        inputs = as_array("predict: inputs", inputs)
        variables = self.variables if variables is None else variables
        labels = np.zeros((len(inputs), *self.federation.test.labels.shape[1:]), self.federation.test.labels.dtype)
        examples = self.federation.test._replace(inputs=inputs, labels=labels)
        if examples.pad is None:
            return np.asarray(evaluate(self.model, variables, examples).logits)
        batch = get_batch(jax.tree.map(jnp.asarray, examples), jnp.arange(len(inputs)), jnp.ones(len(inputs), bool))
        outputs, _ = jax.jit(functools.partial(self.model.apply, train=False))(variables, batch)
        return np.asarray(outputs.logits).reshape(*labels.shape, -1)

    def to_torch(self, variables: Variables | None = None) -> "torch.nn.Module":
        """Returns the network in PyTorch, in evaluation mode.

        It maps images [batch, channels, height, width], normalised as ``(images - mean) / std``, to logits. Networks of
        ``fedjax_collapse.nn`` with the usual classifier have such a twin, in ``experiments/benchmarks``. Adapters are
        merged into the weights of their layers.

        Args:
            variables: of this network; by default those of the run.

        Raises:
            UserError: PyTorch is not installed, or the network has no twin.
        """
        from fedjax_collapse import command

        if variables is not None:
            self.model.check_variables("to_torch: variables", variables)
        variables = self.variables if variables is None else variables
        options = dict(self.config["network"])
        for key in ("name", "lowering", "weights", "adapters"):
            options.pop(key, None)
        name = self.config["network"]["name"]
        try:
            twins = command.import_program("benchmarks.pytorch_networks")
            network = twins.build(name, self.federation.num_classes, self.model.input_shape, **options)
            return twins.load(network, twins.arrays_in_order(self.model, merged(variables))).eval()
        except ImportError:
            raise UserError('PyTorch is not installed: pip install "fedjax_collapse[export]"') from None
        except (KeyError, TypeError, ValueError) as error:
            given = ", ".join(f"{key}={value!r}" for key, value in options.items())
            raise UserError(f"network {name}({given}) has no equivalent in PyTorch here ({error})") from error


def load_run(folder: Path | str, trust: bool = False) -> LoadedRun:
    """Loads the run of a folder ``<study>/<arm>/seed<k>``, or ``<study>/<setting>/<arm>/seed<k>``.

    The data are read again. If the newest checkpoint is damaged, the one before it is loaded, with a warning.

    Args:
        folder: the run's folder.
        trust: import and call custom code that the study's config names, such as ``my_module:MyClass``, which has to be
            importable. Without it, a folder that someone else has made runs no code but this library's.

    Raises:
        UserError: the folder is not a run's, or has no checkpoint; its config names code and is not trusted; or data,
            partition or code differ from those that the run was trained with.
    """
    from fedjax_collapse import command  # not above: ``python -m fedjax_collapse.command`` runs it

    return command.import_program("results.load").load_run(folder, trust)
