"""What defines a run: its data and algorithm, its schedule and its hardware; and checks that these fit together."""

import dataclasses
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse import engine
from fedjax_collapse.core import masks
from fedjax_collapse.core._jax_compat import warn_unguarded
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.core.randomness import key_of_run
from fedjax_collapse.core.records import Key, UserError, Variables
from fedjax_collapse.core.weight_files import check_finite
from fedjax_collapse.data.augment import output_shape
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import Assignment, ClientMap, Participation, State
from fedjax_collapse.nn.model import Model
from fedjax_collapse.nn.padding import check_padding
from fedjax_collapse.run.fingerprint import NAME
from fedjax_collapse.run.local_models import SAVED
from fedjax_collapse.run.measurement import HEADLINES, Measurement, headline_of
from fedjax_collapse.run.own_tests import Finetuning
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.privacy.guarantee import Privacy
from fedjax_collapse.schema import user_code
from fedjax_collapse.schema.describe import describe
from fedjax_collapse.schema.options import Count, Fraction, check_fields, check_key, check_value
from fedjax_collapse.schema.source_code import source_hashes
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.memory_check import check_memory
from fedjax_collapse.training.outline import outline_of

Row = Mapping[str, Any]
ON_NAN = ("stop", "skip_client", "continue")
_OBSERVED = ("evaluate_every", "watch", "measurements", "measure_every", "finetuning")  # of ``description``
OF_SCHEDULE = (*_OBSERVED, "participation", "on_nan", "key", "variables", NAME)  # of it, not of data, model, algorithm


class Run(NamedTuple):
    """One of several batched runs: its seed, partition, numbers and folder."""

    federation: Federation
    algorithm: FedAvg
    key: Key
    folder: Path | str | None = None
    variables: Variables | None = None
    name: str = ""  # tells the noise of private runs apart; see ``simulate``


class Schedule(NamedTuple):
    """The number of rounds, who takes part in them, and what happens between them; arguments of ``simulate``."""

    rounds: Count
    participation: float | Participation = 1.0
    on_nan: Annotated[str | None, (*ON_NAN, None)] = None
    evaluate_every: Count = 1
    watch: str | tuple[int, ...] = "one"
    measurements: tuple[tuple[str, Measurement], ...] = ()
    measure_every: Count = 1
    stop_at_accuracy: Fraction = 0.0
    checkpoint_every: Count = 10
    save_local: Annotated[str, SAVED] = ""
    finetuning: Finetuning | None = None
    privacy: Privacy | None = None

    def check(self) -> None:
        """Raises UserError for an invalid value."""
        for name, measurement in self.measurements:
            user_code.check_signature(f"measurement {name}", measurement, "view")
        check_fields(self)
        if self.save_local and self.watch == "one":
            raise UserError(
                f"save_local {self.save_local!r} saves the models of watched clients: set watch to 'all' or identities"
            )

    def resolved(self, algorithm: FedAvg) -> "Schedule":
        """Returns the schedule with ``on_nan`` given: to stop, or to continue if a method perturbs the mean upload.

        An end that depends on clients' data would not be private; ``perturb`` counts uploads that are not finite as 0.
        """
        usual = "continue" if algorithm.having("perturb") else "stop"
        return self._replace(on_nan=usual) if self.on_nan is None else self

    def keeps_local(self, row: Row) -> bool:
        """Returns whether the local models are saved at the evaluation with this row of metrics."""
        return self.save_local == "all" or (self.save_local == "last" and self.is_over([row]))

    def is_reached(self, rows: Sequence[Row]) -> bool:
        """Returns whether the last row of metrics has the accuracy at which the run stops."""
        return bool(rows) and 0 < self.stop_at_accuracy <= rows[-1].get("accuracy", math.nan)

    def is_over(self, rows: Sequence[Row]) -> bool:
        """Returns whether a run with these rows of metrics has ended."""
        return bool(rows) and (rows[-1]["round"] >= self.rounds or self.is_reached(rows))

    def rounds_after(self, done: int) -> int:
        """Returns the number of rounds from ``done`` to the next evaluation."""
        return min(self.evaluate_every - done % self.evaluate_every, self.rounds - done)

    def measured_after(self, done: int, last: int) -> dict[str, Measurement]:
        """Returns the measurements at the evaluation after ``done`` rounds, ``last`` of them since the previous one."""
        is_due = done % self.measure_every < last or done == self.rounds
        return dict(self.measurements) if is_due else {}

    def costs(self, federation: Federation) -> list[str]:
        """Returns a line about each measurement that declares how many examples it passes through the network."""
        watched = {"one": 1, "all": len(federation.ownership.sizes)}.get(self.watch, len(self.watch))
        counts = {name: of.passes(federation, watched) for name, of in self.measurements if hasattr(of, "passes")}
        return [
            f"measurement {name}: up to {count:,} examples pass through the network each time, see measure_every"
            for name, count in counts.items()
        ]

    @property
    def rule(self) -> Participation:
        """The rules of participation."""
        given = self.participation
        return given if isinstance(given, Participation) else Participation(fraction=given)


class Hardware(NamedTuple):
    """Where rounds run: the layouts of clients and, if there are several, of runs; and where states are stored."""

    client_map: ClientMap = engine.Chunked(1)
    run_map: ClientMap | None = None
    storage: Annotated[str, engine.STORAGES] = "auto"


class Callbacks(NamedTuple):
    """What is called between rounds.

    Args:
        listener: called with the runs' rows of metrics and timing after every evaluation.
        announce: called with lines about layout, memory and costly measurements before the first round.
        should_stop: called after every evaluation; True saves and returns.
    """

    listener: Callable[[Sequence[Row], Sequence[Row]], None] = lambda rows, timings: None
    announce: Callable[[str], None] = lambda line: None
    should_stop: Callable[[], bool] = lambda: False


def structure(run: Run) -> Hashable:
    """Returns everything that batched runs have in common: all but seeds, partitions and numeric hyper-parameters."""
    algorithm = jax.tree.structure(run.algorithm.enabled())
    return algorithm, id(run.federation.train.inputs), run.federation.ownership.rows.shape


def prepare(run: Run, model: Model, schedule: Schedule, hardware: Hardware = Hardware()) -> engine.RoundSpec:  # noqa: B008
    """Checks a run and returns the spec of its rounds.

    Raises:
        UserError: names a value that is invalid, alone or in combination with the others.
    """
    _check_records(run, model, hardware)
    federation, algorithm, client_map = run.federation, run.algorithm, hardware.client_map
    warn_unguarded(client_map.target.platform)
    model = model.on(client_map.target)
    model.task.check_classes(federation.num_classes)
    algorithm.check(model)
    training, sizes = algorithm.training, np.asarray(algorithm.trained_sizes(federation.ownership.sizes))
    training.check_sizes(sizes)
    model.check_inputs(federation.input_shape, output_shape(training.augmentation, federation.input_shape))
    _check_ids(federation, getattr(model.module, "num_ids", None))
    model.task.check(model.initial_shapes(), federation.num_classes, federation.num_targets)
    if model.task.views > 1 and training.augmentation is None:
        raise UserError(
            f"training.augmentation: none, but the task compares {model.task.views} augmented views of an example; "
            "expected one, such as easyfl_cifar10"
        )
    schedule.check()
    schedule = schedule.resolved(algorithm)
    if schedule.finetuning is not None:
        if federation.tests is None:
            raise UserError("finetuning: the clients have no test rows of their own; give the federation tests")
        schedule.finetuning.check(training, model)
    headline = headline_of(algorithm, federation)
    is_own = headline in ("own", "personal")
    if federation.common_validation is not None and is_own:
        raise UserError(
            f"data.validation_fraction: it validates the server's model, but accuracy is of the {HEADLINES[headline]}; "
            "expected 0, and own_tests=dict(name='split', validation=0.1) for rows of each client"
        )
    if schedule.stop_at_accuracy and model.task.metric != "accuracy":
        raise UserError(f"stop_at_accuracy: the task is scored by {model.task.metric}, expected accuracy")
    if schedule.stop_at_accuracy and hardware.run_map is not None:
        raise UserError("with stop_at_accuracy runs end at different rounds: choose engine.runs=separate")
    guarantee.check(
        schedule.privacy, algorithm.enabled(), schedule.rule, schedule.rounds, federation.num_clients,
        on_nan=schedule.on_nan, is_compiled=client_map.is_compiled,
        stops_at_own=schedule.stop_at_accuracy > 0 and is_own, has_validation=federation.common_validation is not None,
    )  # fmt: skip
    schedule.rule.check(federation.num_clients, algorithm.weights_by)
    if federation.store is not None:
        _check_on_disk(federation, algorithm, schedule.rule)
    cohort_size = schedule.rule.cohort_size(federation.num_clients)
    for method in algorithm.enabled().methods.values():
        method.check_cohort(cohort_size, federation.num_clients)
    engine.check_at_once("client_map", client_map, cohort_size, "the clients of a round")
    engine.check_watch(schedule.watch, federation.num_clients)
    of_tokens = federation.train.pad is not None
    if training.drop_last and not of_tokens:
        sizes = np.array([training.batch_size])  # of batches that are all full
    parts = engine.batch_parts(client_map, model, sizes, training.batch_size, of_tokens)
    if hardware.run_map is not None and not hardware.run_map.runs_clients_alone:
        parts = 0
    layout = engine.Layout(
        client_map, cohort_size, max_rounds=min(schedule.evaluate_every, schedule.rounds), batch_parts=parts
    )
    skips = schedule.on_nan == "skip_client"
    if skips and not client_map.is_compiled:
        raise UserError("on_nan 'skip_client': the debug layout stops at the client instead; choose another one")
    rule = type(schedule.rule), type(schedule.rule.sampler)
    spec = engine.RoundSpec(model, layout, hardware.run_map, schedule.watch, skips, rule)
    assignment = Assignment(federation.ownership, schedule.rule)
    engine.trace(dataclasses.replace(spec, model=outline_of(model)), algorithm.enabled(), assignment, federation.train)
    check_padding(model, federation.train)
    check_memory(algorithm, model, federation.train)
    return spec


def _check_on_disk(federation, algorithm, rule):
    """Raises UserError if a federation in a store is combined with anything that needs arrays over all clients."""
    where = "a federation on disk"
    if rule.clock is not None:
        raise UserError(f"clock: virtual time needs all clients, which {where} does not support; choose storage=host")
    if algorithm.is_personal or federation.tests is not None:
        raise UserError(
            f"{where}: personal models and own tests of all clients are not evaluated from a store; choose storage=host"
        )
    if algorithm.having("dispatch"):
        name = next(iter(algorithm.having("dispatch")))
        raise UserError(f"{where}: {name} reads the states of all clients, which are on disk; choose storage=host")
    num_clients = federation.num_clients
    if type(rule.sampler) is engine.Uniform and rule.cohort_size(num_clients) < num_clients:
        raise UserError(
            f"sampler Uniform with {where}: it permutes all clients on the device in every round; expected "
            "engine.HostUniform (cohort.sampler=dict(name='uniform_on_host')), which draws the cohort only"
        )


def _check_records(run, model, hardware):
    """Raises UserError for an argument of ``simulate`` that violates its annotation."""
    check_value("simulate: model", model, Model)
    for record in (run, hardware):
        check_fields(record, "simulate")
    check_fields(run.federation, "simulate: federation")
    check_key("simulate: key", run.key)
    if run.variables is not None:
        model.check_variables("simulate: variables", run.variables)


def _check_ids(federation, count):
    """Raises UserError if an input is no id of a network that has ``count`` of them, of data in memory."""
    if count is None or federation.store is not None:
        return
    for name, inputs in (("train", federation.train.inputs), ("test", federation.test.inputs)):
        least, largest = int(inputs.min()), int(inputs.max())
        if not 0 <= least <= largest < count:
            raise UserError(
                f"data: {name} inputs have ids {least} to {largest}, expected 0 to {count - 1}; correct them, or set "
                f"vocabulary={largest + 1} of the network (in a config network.vocabulary)"
            )


def initialize(run: Run, model: Model, schedule: Schedule) -> tuple[FedAvg, State, Assignment]:
    """Returns the arguments of ``engine.Program`` for a run.

    These are the algorithm, with its numbers as arrays; the state before the first round; and the data except for the
    examples.

    Raises:
        UserError: a variable is not finite.
    """
    algorithm = jax.tree.map(jnp.asarray, run.algorithm.enabled())
    key_init, key_rounds = jax.random.split(run.key)
    if algorithm.having("perturb"):
        key_rounds = key_of_run(key_rounds, _identity(run, model, schedule))
    variables = model.init(key_init) if run.variables is None else run.variables
    what = "Model.init" if run.variables is None else "simulate: variables"
    check_finite(what, masks.by_path(variables._asdict()))
    state = engine.init(algorithm, model, variables, run.federation.num_clients, key_rounds)
    participation = jax.tree.map(jnp.asarray, schedule.rule)
    return algorithm, state, Assignment(run.federation.ownership, participation)


def _identity(run, model, schedule):
    """Returns a text that equal runs have in common, and no others: equal noise in different runs would cancel.

    Besides the name it has everything that a run's numbers depend on, but for what affects no more than rounding and
    what is only observed.
    """
    described = {key: value for key, value in description(run, model, schedule).items() if key not in _OBSERVED}
    described["model"] = {key: _without_lowering(part) for key, part in described["model"].items()}
    return json.dumps(described, sort_keys=True)


def _without_lowering(part):
    return {key: value for key, value in part.items() if key != "lowering"} if isinstance(part, Mapping) else part


def description(run: Run, model: Model, schedule: Schedule) -> dict[str, Any]:
    """Describes everything that a run's numbers depend on, except for its length and how often it is saved."""
    unusual = {"on_nan": schedule.on_nan} if schedule.on_nan == "skip_client" else {}
    unusual |= {"finetuning": describe(schedule.finetuning)} if schedule.finetuning is not None else {}
    unusual |= {"measure_every": schedule.measure_every} if schedule.measure_every > 1 else {}
    if code := source_hashes(run.algorithm, model, schedule):
        unusual["code"] = code
    if run.algorithm.having("perturb"):
        unusual[NAME] = run.name
    return unusual | {
        "algorithm": describe(run.algorithm),
        "model": describe(model),
        "participation": describe(schedule.rule),
        "evaluate_every": schedule.evaluate_every,
        "watch": describe(schedule.watch),
        "measurements": describe(dict(schedule.measurements)),
        "key": np.asarray(jax.random.key_data(run.key)).tolist(),
        "variables": None if run.variables is None else digest(run.variables),
        "normalization": describe([run.federation.train.mean, run.federation.train.std]),
        "domains": None if run.federation.domains is None else digest(run.federation.domains[1:]),
        **run.federation.hashes(),
    }
