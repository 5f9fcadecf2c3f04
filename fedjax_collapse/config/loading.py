"""Runs, loaded from their folders: model, data, variables, client states and metrics.

run = load_run("runs/quickstart/feddecorr/seed0")  # of a study; trust=True if its config names custom code
run = load_run("runs/mine", federation=federation, model=model, algorithm=algorithm)  # of simulate(folder="runs/mine")
run.predict(run.federation.test.inputs)  # logits [examples, classes]
"""

import functools
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.config import build
from fedjax_collapse.config.federations import federations, is_custom_source
from fedjax_collapse.config.folder import CHECKPOINTS, CONFIG, METRICS, seed_of, study_of
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import check_study, resolve_arm
from fedjax_collapse.core.records import Damaged, UserError, Variables
from fedjax_collapse.core.rows import Rows
from fedjax_collapse.data.batches import get_batch
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import State
from fedjax_collapse.nn.adapters import merged
from fedjax_collapse.nn.interchange.torch_names import with_torch
from fedjax_collapse.nn.interchange.torch_weights import arrays_in_order
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.fingerprint import check_same
from fedjax_collapse.run.local_models import LocalModels
from fedjax_collapse.run.runs import OF_SCHEDULE, Run, Schedule, description, initialize
from fedjax_collapse.schema.annotations import as_array
from fedjax_collapse.schema.names import check_name
from fedjax_collapse.schema.options import check_value
from fedjax_collapse.schema.source_code import file_of
from fedjax_collapse.schema.user_code import explaining
from fedjax_collapse.training import server
from fedjax_collapse.training.algorithm import FedAvg

if TYPE_CHECKING:
    import pandas as pd
    import torch

_MAIN = "code.__main__"  # one hash, of the schedule's code as well


class LoadedRun(NamedTuple):
    """A run, restored from its last checkpoint."""

    model: Model
    federation: Federation
    algorithm: FedAvg
    variables: Variables  # of the model that is evaluated
    state: State  # of the server, with its methods, and of all clients
    config: Mapping[str, Any]  # all values of its arm in its setting; empty if the run is not of a study
    local: LocalModels  # after the training of a round, before the server's step: run.local[round][client]
    folder: Path

    def __repr__(self) -> str:
        network, methods = type(self.model.module).__name__, ", ".join(self.algorithm.methods) or "no methods"
        return f"LoadedRun({network} after round {int(self.state.round)} with {methods}; {self.federation})"

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rows of ``metrics.jsonl`` up to the checkpoint: a row per evaluated round, NaN for null.

        Raises:
            UserError: a row is damaged.
        """
        import pandas as pd

        return pd.DataFrame(Rows.read(self.folder / METRICS, int(self.state.round)).rows)

    def features(self, variables: Variables | None = None) -> np.ndarray:
        """Returns the features [examples, features] of the test set, in the order of ``federation.test``.

        Args:
            variables: variables of this network, by default of the run.

        Raises:
            UserError: ``variables`` are of another network, or every token has a label.
        """
        features = evaluate(self.model, self._variables("features", variables), self.federation.test).features
        if features is None:
            raise UserError("features: every token has a label, expected data with one label per example")
        return np.asarray(features)

    def _variables(self, what, variables):
        """Returns the given variables, which are checked, or the variables of the run."""
        if variables is None:
            return self.variables
        self.model.check_variables(f"{what}: variables", variables)
        return variables

    def predict(self, inputs: np.ndarray | jax.Array, variables: Variables | None = None) -> np.ndarray:
        """Returns the logits [examples, classes] of inputs in the units of the data (images of 0 to 255).

        If every token has a label, the logits are [examples, length, classes].

        ``variables``: variables of this network, by default of the run.
        """
        variables = self._variables("predict", variables)
        inputs = as_array("predict: inputs", inputs)
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
        ``fedjax_collapse.nn`` with a linear classifier can be converted; adapters are merged into the weights of their
        layers.

        Args:
            variables: variables of this network, by default of the run.

        Raises:
            UserError: PyTorch is not installed, or the network cannot be converted.
        """
        variables, torch_networks = self._variables("to_torch", variables), with_torch("torch_networks")
        network = torch_networks.twin(self.model)
        return torch_networks.load(network, arrays_in_order(self.model, merged(variables))).eval()


def load_run(
    folder: Path | str,
    trust: bool = False,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    algorithm: FedAvg | None = None,
) -> LoadedRun:
    """Loads the run of a folder.

    The data of a run of a study, ``<study>/<arm>/seed<k>`` or ``<study>/<setting>/<arm>/seed<k>``, are read again. For
    a run of ``simulate``, pass its federation, model and algorithm, which are not stored. If the newest checkpoint is
    damaged, the previous one is loaded, with a warning.

    Args:
        folder: the run's folder.
        trust: whether to import and call custom code that the study's config names, such as ``my_module:MyClass``. If
            False, a folder from someone else runs only code of this library.
        federation: the federation of ``simulate``; None for a run of a study.
        model: its model.
        algorithm: its algorithm.

    Raises:
        UserError: the folder is not a run's, or has no checkpoint; its config names code and is not trusted; or data,
            partition, model, algorithm or code have changed since the run. If the three objects are given, the code of
            a script or notebook (``__main__``) is not compared.

    Examples:
        >>> import tempfile
        >>> source, folder = sources.digits(), tempfile.mkdtemp()
        >>> federation = Federation.from_source(source, partition.dirichlet(source.labels, num_clients=10, alpha=0.5))
        >>> model = Model(nn.MLP(10, hidden=(16,)), federation.input_shape)
        >>> algorithm = FedAvg(LocalTraining(epochs=1))
        >>> result = simulate(federation, model, algorithm, rounds=2, key=jax.random.key(0), folder=folder)
        >>> run = load_run(folder, federation=federation, model=model, algorithm=algorithm)
        >>> run.metrics["round"].tolist()
        [1, 2]
        >>> run.features().shape  # [test examples, features]
        (360, 16)
    """
    check_value("load_run: folder", folder, Path | str)
    folder, config, seed, schedule = Path(folder).resolve(), {}, 0, Schedule(rounds=1)
    given = {"federation": (federation, Federation), "model": (model, Model), "algorithm": (algorithm, FedAvg)}
    is_of_study = all(value is None for value, _ in given.values())
    if is_of_study:
        config, seeds, seed = _read_arm(folder, trust)
    else:
        for name, (value, kind) in given.items():
            check_value(f"load_run: {name}", value, kind)
    with explaining(f"{folder}: cannot be built again"):
        if is_of_study:
            federation = federations(config, seeds)[seed]
            model = build.model(config, federation)
            algorithm, schedule = build.algorithm(config), build.schedule(config)
        run = Run(federation, algorithm, jax.random.key(seed))
        algorithm, template, _ = initialize(run, model, schedule)
    known, besides = description(run, model, schedule), ("model.module.lowering",)
    if not is_of_study:
        known, besides = {name: part for name, part in known.items() if name not in OF_SCHEDULE}, (*besides, _MAIN)
    check_same(folder, known, is_of_study, "restore what has changed, or ", besides)
    state = _newest_state(folder, template)
    variables = server.evaluated(algorithm, model, state.server, state.clients)
    local = LocalModels(folder, state.server.variables)
    return LoadedRun(model, federation, algorithm, variables, state, config, local, folder)


def _read_arm(folder, trust):
    """Returns the values of the arm of a run's folder, all seeds of its study, and the seed of the run."""
    (study, setting), seed = study_of(folder), seed_of(folder)
    if seed is None or not (study / CONFIG).exists():
        if (folder / METRICS).exists():
            raise UserError(
                f"{folder}: simulate wrote this run; expected "
                "load_run(folder, federation=..., model=..., algorithm=...) with the arguments of simulate"
            )
        raise UserError(
            f"{folder}: expected the folder of a run, of a study such as STUDY/fedavg/seed0, or of simulate(folder=...)"
        )
    config = _read_config(study)
    resolved = resolve_arm(config, folder.parent.name, setting)
    if not trust:
        _check_library_only(folder, resolved)
    check_name(f"seed of {study}", str(seed), map(str, config["seeds"]))
    return resolved, config["seeds"], seed


def _read_config(study: Path) -> dict[str, Any]:
    try:
        read = dict(json.loads((study / CONFIG).read_text(encoding="utf-8")))
        config = plain(read)
        check_study(config)
    except Exception as error:  # JSON with any other content
        reason = str(error) if isinstance(error, UserError) else type(error).__name__
        raise UserError(f"{study}: it holds no readable {CONFIG} ({reason}); expected the folder of a study") from error
    return config


def _check_library_only(folder, config):
    """Raises UserError if a value or key of the config names code outside of the library, ``module:name``."""
    names = dict.fromkeys(_imports({key: value for key, value in config.items() if key != "data"}))
    if is_custom_source(source := str(config["data"].get("source"))):
        names |= {source: None}
    if names:
        listed = ", ".join(f"{name} (from {_source(name)})" for name in names)
        raise UserError(f"{folder}: its config names code: {listed}; load_run(..., trust=True) imports and runs it")


def _imports(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _imports(key)
            yield from _imports(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _imports(item)
    elif isinstance(value, str) and ":" in value:
        yield value


def _source(name):
    path = file_of(name.partition(":")[0])
    return "a module that is not found" if path is None else str(path)


def _newest_state(folder, template):
    """Returns the state of the last checkpoint that is not damaged."""
    checkpoints, damages = Checkpoints(folder / CHECKPOINTS), []
    for round in reversed(checkpoints.rounds):
        try:
            state, _ = checkpoints.load(round, template)
        except Damaged as error:
            damages.append(str(error))
            continue
        for damage in damages:
            warnings.warn(f"{damage}; loaded is the state after round {round}", stacklevel=3)
        return state
    if damages:
        raise UserError(f"{'; '.join(damages)}; no checkpoint is whole: restore it, or train again")
    raise UserError(f"{folder}: it has no checkpoint; train first")
