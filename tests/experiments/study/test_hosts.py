"""Several processes that run one study: the numbers of one process, one folder, and one end."""

import os
import re
import socket
import subprocess

import jax
import numpy as np
import pytest
import small_studies
from conftest import cases, check
from unrendered import LAUNCHER, ROOT

from experiments import launch
from experiments.configs import base
from experiments.startup import STOPPING
from experiments.study.processes import hosts
from fedjax_collapse import Model, nn, partition, sources
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.data.store import StoreWriter

pytestmark = pytest.mark.slow

TOLERANCE = 2e-5  # in float32: the order of summation over processes is all that differs
CONFIG = """
import os, signal
import jax
import jax.numpy as jnp
from experiments.configs import base
from fedjax_collapse import Regularizer, Term, option

def get_config(arg=""):
    config = base.get_config()
    config.clients, config.participation, config.rounds, config.checkpoint_every = 10, 0.8, 4, 1
    config.partition.alpha = 1.0
    config.network = dict(name="mlp", hidden=(8,))
    config.training.epochs = 1
    config.engine.runs, scaffold = "separate", dict(scaffold=dict())
    config.arms = dict(
        scaffold=dict(methods=scaffold),
        together=dict(methods=scaffold, engine=dict(runs="together")),
        bombed=dict(methods=dict(bomb=dict(name="many:Bomb"))),
        disk=dict(
            methods=scaffold,
            data=dict(source="store:" + os.path.join(os.path.dirname(__file__), "store")),
            partition=dict(name="natural"), cohort=dict(sampler=dict(name="uniform_on_host")),
        ),
    )
    config.seeds = (0, 1)
    config.measurements = dict(round="many:measure")
    return config

def measure(view):
    here = f"process {jax.process_index()} in round {view.round}"
    if os.environ.get("STOPS") == here:
        os.kill(os.getpid(), signal.SIGTERM)
    if os.environ.get("DIES") == here:
        os.kill(os.getpid(), signal.SIGKILL)
    return view.round

class Bomb(Regularizer):
    strength: float = 1.0
    client: int = option(5)

    def penalty(self, view):
        is_short = jnp.sum(view.batch.mask) < view.training.batch_size  # the last step's
        is_now = (view.client.id == self.client) & (view.round >= 2) & is_short  # drawn in the fourth round
        return {"burst": Term(self.strength, jnp.where(is_now, jnp.nan, 0.0))}
"""
ONE_RUN, ON_DISK, TOGETHER = ("--arm=scaffold", "--seed=0"), ("--arm=disk", "--seed=0"), "--arm=together"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A file, beside which there is a store that all processes read."""
    path = tmp_path_factory.mktemp("configs") / "many.py"
    path.write_text(CONFIG)
    source = sources.digits()
    parts = partition.dirichlet(source.labels, 10, 1.0, seed=0)
    with StoreWriter(path.parent / "store", class_names=source.class_names, mean=source.mean, std=source.std) as store:
        for client, rows in enumerate(parts):
            store.add(f"client {client}", source.images[rows], source.labels[rows])
        store.add_test(source.test_images, source.test_labels)
    return f"--config={path}"


def in_one(config, workdir, devices, *arguments):
    """The exit status of one process."""
    return small_studies.start(config, f"--config.engine.devices={devices}", f"--workdir={workdir}", *arguments)


def in_many(config, workdir, shape, *arguments, only=None, **environment):
    """Statuses, outputs and errors of processes, each with a folder to write into; ``shape``: processes, devices each.

    ``{process}`` in an argument is the process's number; ``only``: those that start.
    """
    (count, devices), port, started = shape, free_port(), []
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)} | environment
    for process in range(count) if only is None else only:
        command = [*LAUNCHER, config, f"--config.engine.devices={count * devices}"]
        command += [f"--compilation_cache={ROOT / '.pytest_cache' / 'jax_hosts'}"]
        command += [f"--workdir={workdir if process == 0 else f'{workdir}-{process}'}"]
        command += [f"--distributed=localhost:{port},{count},{process}"]
        command += [argument.format(process=process) for argument in arguments]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    outputs, errors = zip(*said, strict=True)
    print(*errors, *outputs)  # for a test that fails
    return [process.returncode for process in started], outputs, errors


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def numbers(run):
    """Rounds, losses, and all arrays of a run: of every round's clients, and of the final model."""
    rows = small_studies.rows_of(run)
    arrays = {name: np.array([row[name] for row in rows]) for name in ("round", "loss", "train/task_loss")}
    for name in ("clients", "final"):
        arrays |= {f"{name}/{key}": value for key, value in np.load(run / f"{name}.npz").items()}
    return arrays


def assert_agree(study, config, devices, *arguments, tolerance=0.0):
    """Its numbers are those of one process with so many devices, which was never stopped."""
    expected = study.with_name("expected")
    assert in_one(config, expected, devices, *arguments) == 0
    runs = [run.relative_to(study) for run in study.glob("*/seed*")]
    assert runs
    for run in runs:
        found, wanted = numbers(study / run), numbers(expected / run)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=f"{run} {name}")


def test_one_process_stops_and_two_go_on(config, tmp_path, monkeypatch):
    study = tmp_path / "study"

    def has_rows():
        return any(file.stat().st_size for file in study.rglob("metrics.jsonl"))

    with monkeypatch.context() as patched:
        patched.setattr(launch, "stop_on_signal", lambda: has_rows)
        assert in_one(config, study, 2, TOGETHER) == launch.STOPPED
    statuses, outputs, _ = in_many(config, study, (2, 1), TOGETHER)
    assert statuses == [0, 0] and "resumes after round 1" in outputs[0]
    assert [path.name for path in tmp_path.iterdir()] == ["study"]
    assert len(list(study.glob("*/seed*"))) == 2
    assert_agree(study, config, 2, TOGETHER)  # to the bit: two summands have one order


def test_a_process_that_dies_ends_the_others(config, tmp_path):
    """Both read one store on a shared folder; one process goes on with it, and with the states of its clients."""
    study = tmp_path / "study"
    statuses, _, errors = in_many(config, study, (2, 1), *ON_DISK, DIES="process 1 in round 3")
    assert statuses == [1, -9] and errors[0] == "error: another process has ended; see its output\n"
    assert in_one(config, study, 2, *ON_DISK) == 0
    assert_agree(study, config, 2, *ON_DISK)


@pytest.mark.long
def test_a_divergence_is_traced_back_by_the_first_process(config, tmp_path):
    """To client and step; all processes tell it."""
    study = tmp_path / "study"
    statuses, outputs, errors = in_many(config, study, (2, 2), "--arm=bombed", "--seed=0")
    assert statuses == [1, 1] and errors[0].count("\n") == 1
    assert errors[0].partition("; log: ")[0] == errors[1].partition("; log: ")[0]
    kept = study / "bombed" / "seed0" / "divergence.npz"
    assert re.search(r"round 4, client 5, step \d+: the term bomb/burst is not finite; what the step was", errors[0])
    assert str(kept) in errors[0] and "round 4 is not finite; it is run again" in outputs[0]
    assert [path.name for path in tmp_path.iterdir()] == ["study"]
    with np.load(kept) as arrays:
        assert arrays["client"] == 5 and np.isfinite(arrays["params/Dense_0/kernel"]).all()
        assert 0 < arrays["mask"].sum() < len(arrays["mask"])


def test_processes_of_two_studies_are_refused(config, tmp_path):
    statuses, _, errors = in_many(config, tmp_path / "study", (2, 1), "--config.partition.seed={process}")
    assert statuses == [2, 2] and not any(tmp_path.iterdir())
    told = "error: process 1 has another config and another data than process 0: "
    assert all(error.startswith(told) and error.count("\n") == 1 for error in errors)


def test_several_processes_use_all_their_devices(monkeypatch):
    config = base.get_config()
    config.clients, model = 3, Model(nn.MLP(4), (2, 2, 1))
    assert build.client_map(plain(config), model).num_devices == 3
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert build.client_map(plain(config), model).num_devices == len(jax.devices())
    config.engine.layout = "vectorized"
    check("layout 'vectorized': several processes divide the clients", build.client_map, plain(config), model)


def test_a_process_that_does_not_come(config, tmp_path):
    statuses, _, (error,) = in_many(config, tmp_path / "study", (2, 1), "--distributed_timeout=1", only=[0])
    assert statuses == [2] and "not all processes connected within 1 s" in error and error.count("\n") == 1


def test_auto_is_several_processes_in_a_cluster_alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM", "OMPI", "TPU", "MEGASCALE"))]:
        monkeypatch.delenv(name)
    hosts.join("auto", 1)  # or JAX would refuse, as it has been started
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert not hosts._is_cluster()  # in a batch script, outside of srun
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-2]")
    assert hosts._is_cluster()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert not hosts._is_cluster()


@cases(
    ("on", ["expected off, auto, or host:port,processes,process"]),
    ("localhost:1234,2,2", ["there is no process 2 of 2"]),
    ("localhost:123456,2,0", ["there is no port 123456"]),
    ("localhost:{taken},2,0", ["port {taken}", "choose another one"]),
)
def test_wrong_places(where, words, config, tmp_path, capsys):
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        where = where.format(taken=taken)
        assert in_one(config, tmp_path / "study", 2, f"--distributed={where}") == 2
    small_studies.error_of(capsys, f"error: --distributed={where}: ", *(word.format(taken=taken) for word in words))
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_four_processes_stop_together_and_one_goes_on(config, tmp_path):
    study = tmp_path / "study"
    statuses, outputs, errors = in_many(config, study, (4, 1), *ONE_RUN, STOPS="process 1 in round 2")
    assert statuses == [launch.STOPPED] * 4
    assert "stopped in scaffold seed 0" in outputs[0] and "on each of 4 devices" in outputs[0]
    assert "scaffold" not in outputs[1] and {*"".join(errors).splitlines()} <= {STOPPING}
    assert [path.name for path in tmp_path.iterdir()] == ["study"]  # the other processes have written nothing
    assert in_one(config, study, 4, *ONE_RUN) == 0
    assert_agree(study, config, 4, *ONE_RUN, tolerance=TOLERANCE)
