"""The real builder of CIFAR-10 with TensorFlow, from an archive made here: prepared data are the archive's data."""

import io
import tarfile

import numpy as np
import pytest
from small_data import assert_same_examples

from fedjax_collapse import sources

pytestmark = pytest.mark.slow

pytest.importorskip("tensorflow")

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = {f"data_batch_{batch}.bin": 4 for batch in range(1, 6)} | {"test_batch.bin": 3}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Images and labels of every file of an archive that the builder takes for the one on the web."""
    from tensorflow_datasets.image_classification import cifar

    rng = np.random.default_rng(0)
    examples = {
        name: (rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count, np.uint8))
        for name, count in FILES.items()
    }
    contents = {"batches.meta.txt": "\n".join([*CLASSES, "", ""]).encode()}
    for name, (images, labels) in examples.items():  # a byte for the label, then all red, all green, all blue ones
        rows = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(labels), -1)], axis=1)
        contents[name] = rows.tobytes()
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    usual = cifar.Cifar10._cifar_info.fget
    monkeypatch.setattr(cifar.Cifar10, "_cifar_info", property(lambda self: usual(self)._replace(url=str(path))))
    return examples


def test_the_catalogues_builder_prepares_what_the_source_reads(tmp_path, archive, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for download in (True, False):  # prepared, then read again
        source = sources.tfds("cifar10", data_dir=str(tmp_path / "data"), download=download)
        train = [np.concatenate(arrays) for arrays in zip(*list(archive.values())[:5], strict=True)]
        assert_same_examples(source.images, source.labels, *train)
        assert_same_examples(source.test_images, source.test_labels, *archive["test_batch.bin"])
        assert source.class_names == CLASSES
        (tmp_path / "cache").rename(tmp_path / f"cache of {download}")
    assert list((tmp_path / "data" / "cifar10").rglob("cifar10-train.array_record*"))
