"""What docs/reliability.md says is verified: each file of a run and of a store on disk, damaged in three ways, ends
with a line, or changes nothing; never with other numbers."""

import contextlib
import fnmatch
import re
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import assert_same_bits
from small_store import save_small_store

import fedjax_collapse as fc
from fedjax_collapse import FedAvg, Federation, Model, Participation, Scaffold, UserError, engine, nn, simulate

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
TABLE = re.findall(r"^\| (`[^|]*) \| (?:SHA-256|XXH3|compared|their sum|not)", PAGE, re.MULTILINE)
PATTERNS = [pattern for row in TABLE for pattern in re.findall(r"`([^`]+)`", row)]
WAYS = ("flip", "replace", "link")
SIZES = (3, 9, 1, 5, 14, 2)


def run(place, rounds=4, seed=1, stop_after=None):
    """Trains on the store of a place, in its folder of a run; returns the numbers."""
    federation, done = Federation.from_store(place / "store", examples_per_client=6, storage="disk"), []
    model = Model(nn.MLP(3, hidden=(4,)), federation.input_shape)
    result = simulate(
        federation, model, FedAvg(fc.LocalTraining(epochs=1, batch_size=4), {"scaffold": Scaffold()}), rounds=rounds,
        key=jax.random.key(seed), evaluate_every=1, checkpoint_every=2, folder=place / "run",
        participation=Participation(0.5, engine.HostUniform()),
        listener=lambda row, _: done.append(row), should_stop=lambda: len(done) == stop_after,
    )  # fmt: skip
    return result.metrics, jax.device_get(result.variables), dict(result.clients), dict(result.spectra)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run that was stopped after two of four rounds, another one, and the numbers of the first if it ends."""
    root = tmp_path_factory.mktemp("places")
    for number, name in enumerate(("stopped", "other", "whole"), 1):
        save_small_store(root / name / "store", SIZES, tests=20, seed=number % 2)
        run(root / name, seed=1 if name != "other" else 2, stop_after=2)
    return root, run(root / "whole")


def damage(way, file, other):
    content = bytearray((file if way == "flip" else other).read_bytes())
    content[3 * len(content) // 4] ^= way == "flip"
    file.unlink()
    file.symlink_to(other) if way == "link" else file.write_bytes(content)


def files_of(root):
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("way", WAYS)
def test_no_file_changes_the_numbers_without_a_word(places, way):
    root, whole = places
    outcomes = set()
    for name in files_of(root / "stopped"):
        place, other = root / "damaged", root / "other" / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(root / "stopped", place)
        if not other.exists() and way != "flip":  # the random names that Orbax gives
            continue
        damage(way, place / name, other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = run(place)
            except UserError as error:
                assert "\n" not in str(error), name
                outcomes.add("refused")
                continue
        outcomes.add("equal")
        assert found[0] == whole[0], name
        assert_same_bits(found[1:], whole[1:])
    assert outcomes == {"refused", "equal"}


def test_every_file_is_in_the_table(places):
    """And each row of it is of some file."""
    files = [str(name) for name in files_of(places[0] / "stopped")] + ["store/class_counts.npy"]
    own = {name: [p for p in PATTERNS if fnmatch.fnmatch(name, p)] for name in files}
    assert all(own.values()), [name for name, found in own.items() if not found]
    assert {pattern for found in own.values() for pattern in found} == set(PATTERNS)


def test_nothing_is_written_through_a_link(places, tmp_path):
    place = shutil.copytree(places[0] / "stopped", tmp_path / "place")
    (tmp_path / "victim").write_text("untouched")
    for name in ("metrics.jsonl", "run.json", "states/0.bin", "error.log"):
        target = place / "run" / name
        target.unlink(missing_ok=True)
        target.symlink_to(tmp_path / "victim")
        with contextlib.suppress(UserError, OSError):
            run(place)
        assert (tmp_path / "victim").read_text() == "untouched", name
        shutil.rmtree(place)
        shutil.copytree(places[0] / "stopped", place)
    assert np.isfinite(places[1][0][-1]["loss"])
