"""Local models that a run keeps, and weights that other libraries read."""

import jax
import numpy as np
import pytest
from conftest import assert_close, assert_same_bits, cases, check
from safetensors.numpy import load_file, save_file
from small_studies import error_of, start, tree, write_config

from experiments.commands import export_weights as export
from fedjax_collapse import Model, load_pretrained, load_run, load_weights, nn
from fedjax_collapse.core import masks
from fedjax_collapse.run.local_models import LocalModels

pytestmark = pytest.mark.slow

KEPT = "config.watch, config.save_local, config.checkpoint_every, config.rounds = 'all', 'all', 1, 3"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    place = tmp_path_factory.mktemp("export")
    assert start(write_config(place, KEPT), f"--workdir={place / 'study'}") == 0
    return place / "study"


@pytest.fixture(scope="module")
def run(study):
    return load_run(study / "only" / "seed0")


def test_the_mean_of_local_models_is_the_servers(run):
    """FedAvg weighs by size; nothing is private, and everyone takes part."""
    assert list(run.local) == [1, 2, 3]
    last, sizes = run.local[3], np.asarray(run.federation.ownership.sizes)
    assert list(last) == [0, 1, 2, 3]
    mean = jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=sizes), *last.values())
    assert_close(mean, run.state.server.variables, 1e-5)
    assert not np.allclose(*(masks.by_path(last[k]._asdict())["params/Dense_0/kernel"] for k in (0, 1)))
    check("no local models of round 4, expected one of 1, 2, 3", lambda: run.local[4])


def test_keeping_those_of_all_or_of_the_last_round_gives_the_same_model(study, tmp_path):
    changes = KEPT.replace("'all', 'all'", "'0,2', 'last'")
    assert start(write_config(tmp_path, changes), f"--workdir={tmp_path / 'study'}") == 0
    local = load_run(tmp_path / "study/only/seed0").local
    assert list(local) == [3] and list(local[3]) == [0, 2]
    assert (study / "only/seed0/final.npz").read_bytes() == (tmp_path / "study/only/seed0/final.npz").read_bytes()


def test_a_stopped_run_keeps_the_same(study, tmp_path):
    config, workdir = write_config(tmp_path, KEPT), f"--workdir={tmp_path / 'study'}"
    stops = iter([False, True])
    assert start(config, workdir, should_stop=lambda: next(stops, False)) == 75
    assert start(config, workdir) == 0
    assert tree(tmp_path / "study/only/seed0/local") == tree(study / "only/seed0/local")


def test_a_damaged_file_is_named(study, run, tmp_path):
    folder = tmp_path / "local"
    folder.mkdir()
    (folder / "000003.npz").write_bytes((study / "only/seed0/local/000003.npz").read_bytes()[:-9])
    np.savez(folder / "000002.npz", clients=[0], x=[[1.0]])
    for round, message in ((3, "not a readable .npz file"), (2, "its arrays are not those of the run's network")):
        check(f"00000{round}.npz: {message}", lambda at=round: LocalModels(tmp_path, run.variables)[at])


def test_export_to_safetensors_has_the_arrays_by_path(study, run, tmp_path):
    file = tmp_path / "model.safetensors"
    assert export.main([str(study / "only/seed0"), f"--out={file}"]) == 0
    expected = masks.by_path(run.variables._asdict())
    found = load_file(file)
    assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)
    assert_same_bits(load_weights(file), run.variables)


def test_export_in_either_format_has_the_weights_of_the_client(study, run, tmp_path):
    """In PyTorch's, as ``test_torch_files.py`` has them from a network there."""
    for kind in ("safetensors", "torch"):
        options = f"--out={tmp_path / kind}", f"--format={kind}", "--client=2"
        assert export.main([str(study / "only/seed0"), *options]) == 0
        assert_same_bits(load_pretrained(run.model, tmp_path / kind).init(jax.random.key(0)), run.local[3][2])


@cases(
    (["--client=9"], "client 9 has no local model there, expected one of 0, 1, 2, 3"),
    (["--client=0", "--round=7"], "no local models of round 7"),
    (["--round=1"], "--round is of a local model: give --client too"),
    (["--out=/no/such/folder/x"], "/no/such/folder/x: cannot be written"),
)
def test_wrong_arguments(arguments, message, study, capsys):
    assert export.main([str(study / "only/seed0"), *arguments]) == 2 and error_of(capsys, message)


@cases(("params/b", "params/b has NaN, inf"), ("b", "it holds b, expected"))
def test_a_file_of_something_else_is_named(name, message, tmp_path):
    """Other wrong files are in ``test_pretrained.py``."""
    save_file({name: np.array([1, np.inf if "params" in name else 0])}, tmp_path / "x")
    check(f"x: {message}", load_weights, tmp_path / "x")


def test_one_watched_client_is_not_enough(tmp_path, capsys):
    assert start(write_config(tmp_path, "config.save_local = 'last'"), f"--workdir={tmp_path / 'study'}") == 2
    error_of(capsys, "save_local 'last' saves the models of watched clients: set watch to 'all'")


def test_a_network_without_a_twin_is_named(run):
    other = run._replace(model=Model(nn.MLP(10, hidden=(6,), norm="batch"), (8, 8, 1)))
    check(r"network mlp\(hidden=\(6,\), norm='batch'\) has no equivalent in PyTorch", other.to_torch)
