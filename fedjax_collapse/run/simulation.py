"""A whole run: rounds, evaluation, storage of the results, checkpoints, stopping and resuming."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from fedjax_collapse.core import processes
from fedjax_collapse.core.records import Key, Variables
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.engine import ClientMap, HostUniform, Participation, memory
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run import running
from fedjax_collapse.run.divergence import Diverged
from fedjax_collapse.run.measurement import Measurement
from fedjax_collapse.run.own_tests import Finetuning
from fedjax_collapse.run.privacy.guarantee import Privacy
from fedjax_collapse.run.progress import show_progress
from fedjax_collapse.run.running import PATIENCE
from fedjax_collapse.run.running import Result as Result
from fedjax_collapse.run.runs import Callbacks, Hardware, Row, Run, Schedule
from fedjax_collapse.run.runs import initialize as initialize
from fedjax_collapse.run.runs import prepare as prepare
from fedjax_collapse.run.runs import structure as structure
from fedjax_collapse.schema.names import check_key
from fedjax_collapse.schema.options import check_fields, check_value
from fedjax_collapse.training.algorithm import FedAvg
from fedjax_collapse.training.local import NotFinite


class Options(TypedDict, total=False):
    """Optional arguments of ``simulate``."""

    variables: Variables
    participation: float | Participation
    evaluate_every: int
    checkpoint_every: int
    watch: str | tuple[int, ...]
    measurements: Mapping[str, Measurement]
    measure_every: int
    on_nan: str
    stop_at_accuracy: float
    save_local: str
    finetuning: Finetuning
    privacy: Privacy
    client_map: ClientMap
    storage: str
    folder: Path | str
    name: str
    listener: Callable[[Row, Row], None]
    progress: bool
    should_stop: Callable[[], bool]


def simulate(
    federation: Federation, model: Model, algorithm: FedAvg, *, rounds: int, key: Key, **options: Unpack[Options]
) -> Result:
    """Runs ``rounds`` rounds of ``algorithm`` on ``federation``.

    Args:
        federation: the examples and their partition.
        model: the model.
        algorithm: local training, methods and the server's step.
        rounds: number of rounds. A study that is started again with more rounds continues to them, or prints why the
            result would differ from a study that had them from its start.
        key: the source of all randomness; equal keys give equal results.
        variables: initial variables of the server; by default the model's own initialisation from ``key``.
        participation: fraction of the clients in each round's cohort, at least one client; or the rules by which
            clients are drawn, drop out and straggle (``engine.Participation``, in a config ``cohort``).
        evaluate_every: rounds between evaluations, which are one compiled call.
        checkpoint_every: rounds between checkpoints, rounded up to evaluations.
        watch: clients whose local models are measured: ``one``, the client of the cohort with the lowest identity;
            ``all`` of the cohort; or a tuple of identities, in a config as text: "0,3".
        measurements: functions of a ``measurement.MeasurementView`` by name, whose results are logged and saved. In a
            config name -> a function of fedjax_collapse/measurements, or "my_module:function"; None removes one.
        measure_every: rounds between measurements, rounded up to evaluations. The last round is always measured.
        on_nan: response to a loss or model that is not finite: ``stop`` the run; ``skip_client``, as if that client
            had dropped out; or ``continue``. None is ``stop``; with ``DPFedAvg`` it is ``continue``, the only choice.
        stop_at_accuracy: accuracy that ends the run, after the evaluation that reaches it; 0 is never.
        save_local: whether ``folder`` stores the watched clients' models after local training: never (""), of the
            ``last`` evaluation, or of ``all``.
        finetuning: training of every client before it is tested on its own rows (``Federation.from_split``), discarded
            afterwards (``own_tests.Finetuning``).
        privacy: accounting of privacy, if a method adds noise to the mean upload (``DPFedAvg``). All rows of metrics
            then have epsilon, and ``privacy.json`` in the folder says what it covers. Needs a ``folder`` or a ``name``.
            In a config, the method's noise_multiplier is computed from epsilon, if given.
        client_map: the layout of clients; by default one after another. Fewer train at once if memory is short.
        storage: where examples and client states are stored: ``device``; ``host``, from where cohorts are sent;
            ``disk``, for ``Federation.from_store``; or ``auto`` (default), the device if there is room.
        folder: where metrics and checkpoints are written; a second call continues from there, to the same bits. Default
            none: nothing is written.
        name: of the run, if a method adds noise to the mean upload: runs of other names, or that differ in anything
            else but length and what is observed, have independent cohorts and noise. By default that of the folder,
            which stores it, so that a folder can be moved.
        listener: called with the rows of metrics and timing after every evaluation.
        progress: whether to show the run, as a bar on a terminal or a line in a notebook, which is updated after every
            evaluation; default False. Elsewhere, every evaluation is a line on standard error.
        should_stop: called after every evaluation, and every few seconds if rounds between two of them take longer;
            True writes a checkpoint and returns, and so does Ctrl-C.

    Returns:
        The result, complete or up to where the run was stopped. Of a federation on disk, ``clients`` only has the
        cohorts: arrays [rounds, cohort], among them the identities, ``client``.

    Raises:
        UserError: a value is invalid, the folder belongs to another run, or a round does not fit into memory.
        Diverged: a UserError with the result so far, which is also in the folder; see ``on_nan``.

    Examples:
        >>> source = sources.digits()
        >>> parts = partition.dirichlet(source.labels, num_clients=10, alpha=0.5)
        >>> federation = Federation.from_source(source, parts)
        >>> model = Model(nn.MLP(10, hidden=(16,)), federation.input_shape)
        >>> algorithm = FedAvg(LocalTraining(epochs=1), methods={"feddecorr": FedDecorr(0.1)})
        >>> result = simulate(
        ...     federation, model, algorithm, rounds=2, key=jax.random.key(0), participation=0.5, progress=True
        ... )
        >>> [row["round"] for row in result.metrics]
        [1, 2]
        >>> result.clients["task_loss"].shape  # [rounds, clients]
        (2, 10)
    """
    for name in options:
        check_key("option of simulate", name, Options.__annotations__)
    options = {name: value for name, value in options.items() if value is not None}
    listener, progress = options.pop("listener", None), options.pop("progress", False)

    def listen(rows, timings):
        for listens in filter(None, (show, listener)):
            listens(rows[0], timings[0])

    def options_of(record):
        return {name: options.pop(name) for name in record._fields if name in options}

    measurements = options.pop("measurements", {})
    check_value("simulate: listener", listener, Callable[[Row, Row], None] | None)
    check_value("simulate: progress", progress, bool)
    check_value("simulate: measurements", measurements, Mapping[str, Measurement])
    measurements = tuple(measurements.items())
    fraction = options.get("participation", 1.0)
    is_stored = isinstance(federation, Federation) and federation.store is not None
    if is_stored and not isinstance(fraction, Participation):
        options["participation"] = Participation(fraction=fraction, sampler=HostUniform())
    schedule = Schedule(rounds, measurements=measurements, **options_of(Schedule))
    run = Run(federation, algorithm, key, **options_of(Run))
    hardware, callbacks = Hardware(**options_of(Hardware)), Callbacks(listen, **options_of(Callbacks))
    with show_progress(run, model, rounds) if progress and processes.is_first() else contextlib.nullcontext() as show:
        return simulate_runs([run], model, schedule, hardware, callbacks)[0]


def simulate_runs(
    runs: Sequence[Run],
    model: Model,
    schedule: Schedule,
    hardware: Hardware = Hardware(),  # noqa: B008
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> list[Result]:
    """Simulates runs that differ in seed, partition or numeric hyper-parameters as one program.

    If there are several processes (``core/processes.py``), only the first has the folders, and all stop if one is asked
    to. Raises what ``simulate`` raises; runs that diverge are reported after the others are done.

    Args:
        runs: runs with the same ``structure``; more than one needs a ``run_map``.
        model: the model.
        schedule: of all runs.
        hardware: where they run.
        callbacks: called between rounds.
    """
    check_fields(callbacks, "simulate")
    with memory.explain_out_of_memory():
        loop = running.Loop(runs, model, schedule, hardware)
        with _stop_on_interrupt(callbacks.should_stop) as should_stop, loop.folders.written_at_last():
            stop = _Stop(should_stop)
            running.prepare_program(loop, callbacks.announce)
            is_stopping = stop.if_due()
            while not (is_stopping or loop.is_over):
                try:
                    rows = running.advance(loop, stop.if_due)
                except NotFinite as failure:  # raised in the debug layout
                    running.stop_at(loop, failure)
                    break
                if rows is not None:
                    callbacks.listener(*rows)
                    running.find_diverged(loop, callbacks.announce)
                is_stopping = rows is None or stop.now()
                running.save(loop, is_stopping)
        results = running.results(loop)
    if loop.diverged and loop.is_over:
        raise Diverged(loop.diverged, results)
    return results


class _Stop:
    """Decides whether to stop, at the same places in all processes."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop, self._asked = should_stop, time.monotonic()

    def now(self) -> bool:
        """Returns whether any of the processes is asked to stop."""
        self._asked = time.monotonic()
        return any(processes.all_gather(bool(self._should_stop())))

    def if_due(self) -> bool:
        """The same, unless it was decided a moment ago."""
        is_due = processes.is_multiprocess() or time.monotonic() - self._asked >= PATIENCE
        return is_due and self.now()


@contextlib.contextmanager
def _stop_on_interrupt(should_stop):
    """Yields ``should_stop``, extended to return True after Ctrl-C; a second Ctrl-C interrupts at once.

    In another thread, or with a signal handler of the caller, signals are left alone.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield should_stop
        return
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(received) or should_stop()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
