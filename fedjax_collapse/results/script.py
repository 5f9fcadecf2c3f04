"""A study from a script: arms and seeds, one run of ``simulate`` after another."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_collapse.config.cells import arms_of
from fedjax_collapse.config.folder import ARMS, PARTITION, SUMMARY, run_folder
from fedjax_collapse.config.resolving import check_folder_name
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.nn.model import Model
from fedjax_collapse.results.study import Results, load, of_runs
from fedjax_collapse.results.summaries import summary_of
from fedjax_collapse.run.simulation import simulate
from fedjax_collapse.schema.options import Seed, check_value
from fedjax_collapse.training.algorithm import FedAvg


def study(
    federation: Federation | Callable[[int], Federation],
    model: Model,
    arms: Mapping[str, FedAvg],
    *,
    rounds: int,
    seeds: Sequence[int] = (0,),
    folder: Path | str | None = None,
    progress: bool = True,
    **options: Any,
) -> Results:
    """Runs every arm with every seed, and returns the results of all.

    Args:
        federation: the examples and their partition, or a function from seeds to federations.
        model: the model.
        arms: the algorithms by name; others are compared with the first.
        rounds: the number of rounds.
        seeds: of initial weights, cohorts and batches; a run for each.
        folder: where to write ``<arm>/seed<k>`` of every run, which ``results.load`` and ``fedjax-collapse report``
            read; a second call continues unfinished runs. By default nothing is written.
        progress: whether each run is shown while it is trained.
        **options: of ``simulate``.

    Raises:
        UserError: a value is invalid, the folder belongs to other runs, or as ``simulate`` does.

    Examples:
        >>> source = sources.digits()
        >>> parts = partition.dirichlet(source.labels, num_clients=10, alpha=0.1)
        >>> federation = Federation.from_source(source, parts)
        >>> model = Model(nn.MLP(10, hidden=(16,)), federation.input_shape)
        >>> training = LocalTraining(epochs=1)
        >>> arms = {"fedavg": FedAvg(training), "feddecorr": FedAvg(training, {"feddecorr": FedDecorr(0.1)})}
        >>> found = study(federation, model, arms, rounds=2, seeds=(0, 1), progress=False)
        >>> found.frame[["arm", "seed", "round"]].shape
        (8, 3)
    """
    check_value("study: arms", arms, Mapping[str, FedAvg])
    check_value("study: seeds", seeds := tuple(seeds), tuple[Seed, ...])
    for what, given in (("arms", arms), ("seeds", seeds)):
        if not given:
            raise UserError(f"study: no {what}, expected at least one")
    declared = {arm: {"methods": {name: {} for name in algorithm.methods}} for arm, algorithm in arms.items()}
    config = {"arms": declared, "seeds": [*seeds], "rounds": rounds}
    if folder is not None:
        folder = Path(folder)
        for arm in arms:
            check_folder_name("arm", arm)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / ARMS, config)
    of_seed = {seed: federation(seed) if callable(federation) else federation for seed in seeds}
    found: dict[str, dict[int, Any]] = {}
    for arm, algorithm in arms.items():
        for seed, own in of_seed.items():
            place = None if folder is None else run_folder(folder, (arm, seed))
            about = dict(name=f"{arm} seed {seed}", folder=place, progress=progress)
            result = simulate(own, model, algorithm, rounds=rounds, key=jax.random.key(seed), **about, **options)
            found.setdefault(arm, {})[seed] = result
            if place is not None and result.rounds_done == rounds:
                write_npz(place / PARTITION, own.partition_arrays())
                write_json(place / SUMMARY, summary_of(result, options.get("watch", "one")))
    if folder is not None:
        return load(folder)
    partitions = {seed: own.partition_arrays() for seed, own in of_seed.items()}
    return dataclasses.replace(of_runs(found, partitions), config=config, arms_in={"": arms_of(config)})
