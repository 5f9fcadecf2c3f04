"""A run that is loaded again: what it holds, what it refuses, and that it runs no code of a stranger's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, cases, check
from small_studies import rows_of, start, write_config, write_data

from fedjax_collapse import FedAvg, FedDyn, FedProx, LocalTraining, Model, UserError, load_run, nn, simulate

pytestmark = pytest.mark.slow

OWN = """
import pathlib
import numpy as np

pathlib.Path(__file__).with_name("imported").touch()

def in_turn(labels, num_clients, seed=0):
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)

def spread(view):
    return 1.0
"""
CHANGES = (
    "config.data.source, config.checkpoint_every = 'npz:data.npz', 1",
    "config.arms = dict(only={}, own=dict(partition=dict(name='of_load:in_turn')))",
)
NEITHER = r"expected the folder of a run, of a study such as STUDY/fedavg/seed0, or of simulate\(folder=...\)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a study with an arm of the library's and one with code of the user's."""
    place = tmp_path_factory.mktemp("loading")
    (place / "of_load.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("sys.path", [*sys.path])
        write_data()
        assert start(write_config(place, *CHANGES), "--workdir=study") == 0
        (place / "imported").unlink()
        yield place


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A copy of it, in the current folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(place, **values):
    """Values of the study's config, by dotted names."""
    path = place / "study" / "config.json"
    config = json.loads(path.read_text())
    for name, value in values.items():
        part, _, key = name.rpartition("__")
        (config[part] if part else config)[key] = value
    path.write_text(json.dumps(config))


def test_a_folder_with_experiments_of_its_own(place):
    """A user's folder has this name, too: the library needs no program, and nothing that draws to be imported."""
    (place / "experiments").mkdir()
    (place / "experiments" / "__init__.py").touch()
    code = "import experiments, sys, fedjax_collapse.results; assert not {'matplotlib', 'pandas'} & {*sys.modules};"
    code += "from fedjax_collapse import load_run; print(load_run('study/only/seed0').state.round)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(len(Path("study/only/seed0/metrics.jsonl").read_text().splitlines()))], done


@cases(
    (dict(server__optimizer=dict(name="os:system", command="touch called")), r"os:system \(from /.*/os.py\)"),
    (dict(methods={"of_load:spread": {}}), "of_load:spread"),
    (dict(training__task_loss="of_load:spread"), "of_load:spread"),
    (dict(training__optimizer=dict(name="no_such_module:adam")), r"no_such_module:adam \(from a module"),
    (dict(network=dict(name="mlp", head=dict(name="of_load:in_turn"))), "of_load:in_turn"),
    (dict(arms=dict(only=dict(methods=dict(a=dict(name="of_load:spread"))))), "of_load:spread"),
)
def test_no_code_of_a_config_is_imported_without_trust(values, named, place, monkeypatch):
    monkeypatch.syspath_prepend(place)
    change(place, **values)
    check(f"config names code: {named}.*trust=True", load_run, "study/only/seed0")
    assert not (place / "imported").exists() and not (place / "called").exists()


def test_trusted_code_runs(place):
    check(r"of_load:in_turn \(from .*of_load.py\); load_run", load_run, "study/own/seed0")
    run = load_run("study/own/seed0", trust=True)
    shown = f"{run}\n{run.federation}".splitlines()
    assert len(shown) == 2 and shown[0].startswith("LoadedRun(") and shown[0].endswith(f"; {shown[1]})")
    test = run.federation.test
    accuracy = np.mean(run.predict(np.asarray(test.inputs)).argmax(axis=1) == np.asarray(test.labels))
    assert accuracy == rows_of(place / "study" / "own" / "seed0")[-1]["accuracy"]


def test_other_data_or_another_partition_is_refused(place):
    there = json.loads((place / "study/only/seed0/run.json").read_text())
    change(place, partition__alpha=0.2)
    check(f"another run: partition is {there['partition']} there, .* here", load_run, "study/only/seed0")
    change(place, partition__alpha=1.0)
    load_run("study/only/seed0")
    write_data(seed=1)
    check(f"data is {there['data']} there, .* here; restore what has changed", load_run, "study/only/seed0")


def test_the_checkpoint_before_a_damaged_one(place):
    newest, first = (place / "study/only/seed0/checkpoints" / round / "sha256.json" for round in "21")
    newest.write_text("{}")
    with pytest.warns(UserWarning, match=r"sha256.json: cannot be checked .*; loaded is .* round 1"):
        assert int(load_run("study/only/seed0").state.round) == 1
    first.write_text("{}")
    check("no checkpoint is whole: restore it, or train again", load_run, "study/only/seed0")


@cases(
    ("study/only/seed1", "unknown seed of .*study '1': expected one of 0"),
    ("study/onl/seed0", "did you mean 'only'?"),
    ("study/only/sed0", NEITHER),
    ("", NEITHER),
    (None, "folder None: expected"),
)
def test_no_folder_of_a_run(folder, message, place):
    check(message, load_run, folder)


@cases("{}", "{", '{"arms": 3}')
def test_no_config(content, place):
    (place / "study" / "config.json").write_text(content)
    check(r"study: it holds no readable config.json", load_run, "study/only/seed0")


def test_config_values_of_other_types_are_one_line(place):
    """Whatever replaces a value: it is refused, or it is the same run."""
    path = place / "study" / "config.json"
    whole = json.loads(path.read_text())
    for key in whole:
        for value in (None, -1, "text", [], {}, {"name": 3}, True, 1e400):
            path.write_text(json.dumps(whole | {key: value}))
            try:
                load_run("study/only/seed0")
            except UserError as error:
                assert "\n" not in str(error)


class OwnProx(FedProx):
    pass


def spread(view):
    return float(np.std(view.server.features))


@pytest.fixture(scope="module")
def script(federation, tmp_path_factory):
    """What a script gives to ``simulate``, and the result; the folder has it, too."""
    algorithm = FedAvg(LocalTraining(epochs=1, learning_rate=0.05), {"feddyn": FedDyn(0.1)})
    given = dict(federation=federation, model=Model(nn.MLP(4, hidden=(6, 5)), (8, 8, 2)), algorithm=algorithm)
    folder = tmp_path_factory.mktemp("script") / "run"
    schedule = dict(participation=0.6, evaluate_every=2, measurements={"spread": spread}, measure_every=4)
    return folder, given, simulate(**given, rounds=5, key=jax.random.key(3), folder=folder, **schedule)


def test_a_run_of_a_script(script, federation):
    """Whatever its key and schedule were, as these are not given again; FedDyn evaluates another model."""
    folder, given, result = script
    run = load_run(folder, **given)
    assert run.folder == folder and run.config == {}
    assert_same_bits((run.variables, run.state.clients), (result.variables, result.state.clients))
    assert jax.random.key_data(run.state.key).tolist() == jax.random.key_data(result.state.key).tolist()
    columns = {name: [row.get(name, np.nan) for row in result.metrics] for name in result.metrics[-1]}
    assert run.metrics["round"].tolist() == [2, 4, 5] and set(run.metrics) == set(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(run.metrics[name], values)
    assert np.isnan(run.metrics["measured/spread"]).tolist() == [True, False, False]
    inputs = (np.asarray(federation.test.inputs, np.float32) - 100) / 64
    for variables in (None, run.state.server.variables):
        of = (variables or result.variables)._asdict()
        outputs = given["model"].module.apply(of, inputs, np.ones(30, bool), train=False)
        np.testing.assert_allclose(run.features(variables), outputs.features, rtol=1e-5, atol=1e-6)
    images = np.moveaxis(inputs, -1, 1)
    logits = run.to_torch()(torch.from_numpy(images.copy())).detach().numpy()
    np.testing.assert_allclose(logits, run.predict(federation.test.inputs), rtol=1e-4, atol=1e-5)


@cases(
    (dict(model=None), "load_run: model None: expected Model"),
    (dict(federation=None, model=None, algorithm=None), "simulate wrote this run; expected load_run.folder, "),
    (dict(federation=lambda same: same.with_partition(same.owned_rows()[::-1])), "partition is .* there, .* here"),
    (dict(model=lambda same: Model(nn.MLP(4, hidden=(6, 4)), (8, 8, 2))), r"hidden is \[6, 5\] there, \[6, 4\] "),
    (dict(algorithm=lambda same: FedAvg(same.training)), "algorithm.methods.feddyn.* there, absent here"),
    (dict(algorithm=lambda same: same.replace(training=LocalTraining(epochs=2))), "epochs is 1 there, 2 here"),
)
def test_a_run_of_a_script_needs_what_it_was_given(change, message, script):
    folder, given, _ = script
    given = given | {name: of and of(given[name]) for name, of in change.items()}
    check(message, load_run, folder, **given)


def test_code_of_a_script_is_compared(federation, network, tmp_path, monkeypatch):
    """Of modules that both have: measurements may be there alone, and a script's classes may be imported here."""
    given = dict(federation=federation, model=network, algorithm=FedAvg(LocalTraining(), {"own": OwnProx(0.1)}))
    simulate(**given, rounds=1, key=jax.random.key(0), folder=tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())

    def write(code):
        (tmp_path / "run.json").write_text(json.dumps(described | {"code": code}))

    write(described["code"] | {"of_measurements": "1"})
    load_run(tmp_path, **given)
    write(dict.fromkeys(described["code"], "2"))
    check(r"the source of .*test_loading has changed", load_run, tmp_path, **given)
    write({"__main__": "3"})
    load_run(tmp_path, **given)
    monkeypatch.setattr(OwnProx, "__module__", "__main__")
    load_run(tmp_path, **given)
