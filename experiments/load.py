"""A run of a study, loaded again: its model, data, variables and client states.

from experiments.load import load_run

run = load_run("runs/quickstart/feddecorr/seed0")
run.predict(run.federation.test.inputs)  # logits [examples, classes]
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments import build
from experiments.arms import resolve_arm
from experiments.configs.base import StudyConfig
from fedjax_collapse import FedAvg, Federation, Model, Variables, server
from fedjax_collapse.checkpoint import Checkpoints
from fedjax_collapse.engine import State
from fedjax_collapse.evaluation import evaluate
from fedjax_collapse.records import UserError
from fedjax_collapse.simulation import Run, initialize


class LoadedRun(NamedTuple):
    """A run as its last checkpoint has it."""

    model: Model
    federation: Federation
    algorithm: FedAvg
    variables: Variables  # of the model that is evaluated
    state: State  # of the server, with what its methods keep, and of all clients
    config: ConfigDict  # of its arm

    def predict(self, inputs: np.ndarray, variables: Variables | None = None) -> np.ndarray:
        """Logits [examples, classes] of inputs in the units of the data (images of 0 to 255), of this model or another
        of the same network."""
        inputs = np.asarray(inputs)
        labels = np.zeros((len(inputs), *self.federation.test.labels.shape[1:]), self.federation.test.labels.dtype)
        examples = self.federation.test._replace(inputs=inputs, labels=labels)
        return np.asarray(evaluate(self.model, self.variables if variables is None else variables, examples).logits)


def load_run(folder: Path | str) -> LoadedRun:
    """The run whose folder that is: ``<study>/<arm>/seed<k>``, or ``<study>/<setting>/<arm>/seed<k>``.

    The data are read anew; a config that names the user's own modules needs them importable.

    Raises:
        UserError: the folder holds no run of a study, or none that has been saved.
    """
    folder = Path(folder).resolve()
    arm, seed, study = folder.parent.name, folder.name.removeprefix("seed"), folder.parents[1]
    setting = "" if (study / "config.json").exists() else study.name
    config = _read_config(study.parent if setting else study)
    if not seed.isdigit():
        raise UserError(f"{folder}: expected the folder of a run, such as STUDY/fedavg/seed0")
    resolved = resolve_arm(config, arm, setting)
    federation = build.federations(resolved, config.seeds)[int(seed)]
    model, algorithm = build.model(resolved, federation), build.algorithm(resolved)
    run = Run(federation, algorithm, jax.random.key(int(seed)))
    algorithm, template, _ = initialize(run, model, build.schedule(resolved))
    checkpoints = Checkpoints(folder / "checkpoints")
    if not checkpoints.rounds:
        raise UserError(f"{folder}: it has no checkpoint; run the study first")
    state, _ = checkpoints.load(checkpoints.rounds[-1], template)
    variables = server.evaluated(algorithm, model, state.server, state.clients)
    return LoadedRun(model, federation, algorithm, variables, state, resolved)


def _read_config(study: Path) -> ConfigDict:
    try:
        return StudyConfig(_as_written(json.loads((study / "config.json").read_text())))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{study}: it holds no readable config.json ({error}); expected the folder of a study"
        ) from error


def _as_written(value: Any) -> Any:
    """The value with tuples, which JSON has not."""
    if isinstance(value, dict):
        return {key: _as_written(item) for key, item in value.items()}
    return tuple(map(_as_written, value)) if isinstance(value, list) else value
