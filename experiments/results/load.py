"""Builds a run of a study again, from its config and its last checkpoint; ``fedjax_collapse.load_run`` calls it."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from experiments.config import build
from experiments.config.names import check_name, explained
from experiments.config.plain_values import plain
from experiments.config.resolving import resolve_arm
from experiments.config.validation import check_study
from experiments.configs import base
from experiments.folder import CHECKPOINTS, CONFIG, seed_of, study_of
from fedjax_collapse.core.records import Damaged, UserError
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.fingerprint import check_same
from fedjax_collapse.run.loading import LoadedRun
from fedjax_collapse.run.local_models import LocalModels
from fedjax_collapse.run.runs import description
from fedjax_collapse.run.simulation import Run, initialize
from fedjax_collapse.schema.options import check_value
from fedjax_collapse.schema.source_code import file_of
from fedjax_collapse.training import server


def load_run(folder: Path | str, trust: bool) -> LoadedRun:
    """See ``fedjax_collapse.load_run``."""
    check_value("load_run: folder", folder, Path | str)
    folder = Path(folder).resolve()
    study, setting = study_of(folder)
    config, arm, seed = _read_config(study), folder.parent.name, seed_of(folder)
    if seed is None:
        raise UserError(f"{folder}: expected the folder of a run, such as STUDY/fedavg/seed0")
    resolved = resolve_arm(config, arm, setting)
    if not trust:
        _check_library_only(folder, resolved)
    check_name(f"seed of {study}", str(seed), map(str, config["seeds"]))
    try:
        federation = build.federations(resolved, config["seeds"])[seed]
        model = build.model(resolved, federation)
        algorithm, schedule = build.algorithm(resolved), build.schedule(resolved)
        run = Run(federation, algorithm, jax.random.key(seed))
        algorithm, template, _ = initialize(run, model, schedule)
    except Exception as error:  # from the user's code
        raise explained(f"{folder}: cannot be built again", error) from error
    known = description(run, model, schedule)
    check_same(folder, known, hint="restore what has changed, or ", besides=("model.module.lowering",))
    state = _newest_state(folder, template)
    variables = server.evaluated(algorithm, model, state.server, state.clients)
    local = LocalModels(folder, state.server.variables)
    return LoadedRun(model, federation, algorithm, variables, state, resolved, local)


def _read_config(study: Path) -> dict[str, Any]:
    try:
        read = dict(json.loads((study / CONFIG).read_text(encoding="utf-8")))
        config = plain(base.get_config()) | plain(read)  # with defaults for keys that its version did not have
        check_study(config)
    except Exception as error:  # JSON with any other content
        reason = str(error) if isinstance(error, UserError) else type(error).__name__
        raise UserError(f"{study}: it holds no readable {CONFIG} ({reason}); expected the folder of a study") from error
    return config


def _check_library_only(folder, config):
    """Raises UserError if the config names code outside of the library: ``module:name``, as a value or a key."""
    names = dict.fromkeys(_imports({key: value for key, value in config.items() if key != "data"}))
    if build.is_custom_source(source := str(config["data"].get("source"))):
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
        raise UserError(f"{'; '.join(damages)}; no checkpoint is whole: restore it, or run the study again")
    raise UserError(f"{folder}: it has no checkpoint; run the study first")
