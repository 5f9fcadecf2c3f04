"""The cache of decoded data: entries are complete, with one writer or several, also if one of them is killed."""

import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from experiments import launch
from fedjax_collapse.core.files import cache_folder
from fedjax_collapse.data.reading.cache import cached
from fedjax_collapse.engine.timing_cache import cached_numbers

pytestmark = pytest.mark.usefixtures("own_cache")


def swap_array(entry):
    """A whole file, but not of the arrays that its hash is of."""
    with np.load(entry) as stored:
        arrays = dict(stored)
    np.savez(entry, **arrays | {"labels": arrays["labels"][::-1]})


def change_compression(entry):
    """To a method that there is not, in the archive's own table."""
    content = bytearray(entry.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 10] = 99
    entry.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        swap_array,
        lambda entry: entry.write_bytes(entry.read_bytes()[:-500]),
        lambda entry: entry.write_bytes(b"no zip archive"),
        lambda entry: entry.write_bytes(entry.read_bytes().replace(b"<u1", b"<u9").replace(b"|u1", b"|O1")),
        change_compression,
    ],
)
def test_a_damaged_entry_is_made_again(damage):
    arrays = {"images": np.arange(5000, dtype=np.uint16).view(np.uint8), "labels": np.arange(3)}
    cached("some", {"key": 1}, lambda: arrays)
    (entry,) = cache_folder("data").iterdir()
    damage(entry)
    made = []
    again = cached("some", {"key": 1}, lambda: made.append(1) or arrays)
    assert made and all(np.array_equal(again[name], arrays[name]) for name in arrays)
    cached("some", {"key": 1}, lambda: pytest.fail("the entry is whole"))


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_killed_writer_leaves_no_half_entry(monkeypatch):
    """A process is killed while writing; the next one creates the entry, and one of the next day removes the rest."""

    def end_halfway(file, **arrays):
        file.write(bytes(2**21))
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        np.savez = end_halfway
        cached("some", {"key": 1}, lambda: {"labels": np.arange(3)})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (half,) = cache_folder("data").iterdir()
    assert cached("some", {"key": 1}, lambda: {"labels": np.arange(4)})["labels"].tolist() == [0, 1, 2, 3]
    cached("some", {"key": 1}, lambda: pytest.fail("the entry is whole"))
    assert half.exists()  # it might still be written
    os.utime(half, (0, 0))
    cached("some", {"key": 2}, lambda: {"labels": np.arange(4)})
    assert sorted(file.suffix for file in cache_folder("data").iterdir()) == [".npz", ".npz"]


def test_two_writers_at_once():
    """Each gets its own arrays, and one entry is left, whole."""
    both = threading.Barrier(2)

    def write(value):
        arrays = {"images": np.full((1000, 1000), value), "labels": np.arange(value)}
        return cached("some", {"key": 1}, lambda: both.wait(60) < 2 and arrays)["labels"].tolist()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(write, (3, 4))) == [[0, 1, 2], [0, 1, 2, 3]]
    (entry,) = cache_folder("data").iterdir()
    arrays = cached("some", {"key": 1}, lambda: pytest.fail("the entry is whole"))
    assert entry.suffix == ".npz" and np.all(arrays["images"] == len(arrays["labels"]))


def test_a_cache_is_its_users_alone(tmp_path, monkeypatch):
    """Folders that the cache creates, with any umask; existing folders do not change."""
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    before = tmp_path.stat().st_mode
    old = os.umask(0)
    try:
        cached("some", {"key": 1}, lambda: {"labels": np.arange(4)})
        launch.configure_jax(str(cache_folder("jax")))
        cached_numbers("timings", jax.devices()[0], 1, lambda: {"1": 2.5})
    finally:
        os.umask(old)
    made = [folder for folder in tmp_path.rglob("*") if folder.is_dir()]
    assert {folder.name for folder in made} >= {"cache", "fedjax_collapse", "data", "jax", "timings"}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in made} == {0o700}
    assert tmp_path.stat().st_mode == before


def test_without_room_for_a_cache_the_data_are_still_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached"):
        assert cached("some", {}, lambda: {"labels": np.arange(4)})["labels"].tolist() == [0, 1, 2, 3]
