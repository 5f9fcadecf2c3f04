"""Bad Parquet and npz files are one line that names the file and the row, what was expected and what to do."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from small_data import NAMES, check, draw, encode, save_parquet

from fedjax_collapse import sources


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore:.*there is no test part; the test part is validation")
def test_wrong_parquet_files(tmp_path):
    root = tmp_path / "data"
    images, labels = draw(8, (8, 8, 3))
    check("there is no such folder; expected the folder of a data set", sources.parquet, root)
    root.mkdir()
    check(r"no train\*.parquet in it", sources.parquet, root)
    save_parquet(root / "train.parquet", images, labels, names=())
    check("it has no test part, and test_fraction 0.2 of each class is none", sources.parquet, root)
    save_parquet(root / "validation.parquet", images, labels, names=())
    assert sources.parquet(str(root)).class_names == ("0", "1", "2", "3")
    check("no column 'fine' among image, label", sources.parquet, root, label_column="fine")
    train = root / "train.parquet"
    for contents, values, names, message in (
        (images, labels, NAMES[:3], r"train.parquet, row \d: label 3 is not among the 3 classes"),
        (images, labels - 1, NAMES, r"row \d: label -1 is not among the 4 classes, 0 to 3; .*labels are known"),
        (images, labels - 1, (), "training labels are -1 to 2 for 8 examples"),
        (images, labels % 3, (), r"validation.parquet, row \d: label 3 is not among the 3 classes"),
        (images, labels / 2, NAMES, "row 0 has no encoded image in 'image', or neither an integer nor a name"),
        ([b"", *images[1:]], labels, NAMES, r"train.parquet, row 0: cannot be read as an image \(it is empty\)"),
        ([encode(images[0])[:-60], *images[1:]], labels, NAMES, "train.parquet, row 0: cannot be read as an image"),
        ([*images[1:], draw(1, (8, 9, 3))[0][0]], labels, NAMES, "row 7: 9 x 8 pixels, but .*, row 0 has 8 x 8"),
    ):
        save_parquet(train, contents, values, names)
        check(message, sources.parquet, root)
    save_parquet(train, images, labels)
    save_parquet(root / "train-1.parquet", images, labels, NAMES[::-1])
    check("train.parquet: other class names than train-1.parquet", sources.parquet, root)
    (root / "train-1.parquet").unlink()
    for names in (NAMES, ()):
        save_parquet(root / "validation.parquet", [], labels[:0], names)
        check("validation.parquet: it has no rows; expected at least one example", sources.parquet, root)
    save_parquet(root / "validation.parquet", images, labels)
    save_parquet(train, images, labels, (0, 1, 2, 3))
    save_parquet(root / "validation.parquet", images, labels, (0, 1, 2, 3))
    assert sources.parquet(str(root)).class_names == ("0", "1", "2", "3")
    check("no class 'ant' among 0, 1, 2, 3", sources.parquet, root, classes=("ant",))
    check("parquet: classes .0,.: 0: expected str, got int", sources.parquet, root, classes=(0,))
    whole = train.read_bytes()
    for content in (b"", b"PAR1 and then nothing", whole[:-100]):
        train.write_bytes(content)
        check("train.parquet: cannot be read as Parquet .*fetch or write it again", sources.parquet, root)
    table = pyarrow.table({"image": [encode(images[0])], "label": [0]})
    for metadata in ("{", '{"info": 0}'):
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": metadata}), train)
        check("train.parquet: Hugging Face's metadata in it cannot be read", sources.parquet, root)


IMAGES, LABELS = draw(12, (8, 8, 3))
WHOLE = dict(images=IMAGES, labels=LABELS, test_images=IMAGES, test_labels=LABELS)
BY_DOMAIN = dict(domains=LABELS, test_domains=LABELS, domain_names=np.array(NAMES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(images=IMAGES / 255), r"images are float64\[12, 8, 8, 3\] for 12 labels of int64; expected uint8"),
        (dict(images=IMAGES[:5]), r"uint8\[5, 8, 8, 3\] for 12 labels"),
        (dict(images=np.zeros((12, 3, 8, 8), np.uint8)), r"shape \[12, 3, 8, 8\] is 3 high .*channels_first=True"),
        (dict(labels=np.eye(4, dtype=int)[LABELS]), "for 48 labels of int64; expected uint8"),
        (dict(labels=LABELS - 1), "training labels are -1 to 2 for 12 examples; correct them"),
        (dict(test_labels=LABELS + 1), "test_labels are 1 to 4, but there are 4 names for them"),
        (dict(class_names=np.array(NAMES[:3])), "labels are 0 to 3, but there are 3 names"),
        (dict(test_images=IMAGES[:, :6]), r"training images are \(8, 8, 3\), test images \(6, 8, 3\)"),
        (dict(domains=LABELS), "holds domains; expected all of domains, test_domains"),
        (BY_DOMAIN | dict(test_domains=LABELS[:5]), "test_domains are no 12 integers"),
        (dict(labels=LABELS.astype(object)), "it holds Python objects, which are never loaded"),
        (dict(images=None), "holds labels, test_images, test_labels; expected images, labels"),
    ],
)
def test_wrong_arrays_in_an_npz_file(tmp_path, changes, message):
    path = tmp_path / "data.npz"
    np.savez(path, **{name: array for name, array in (WHOLE | changes).items() if array is not None})
    check(f"data.npz: .*{message}", sources.npz, path)


FEATURES = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
EXTRACTED = dict(features=FEATURES, labels=LABELS, test_features=FEATURES, test_labels=LABELS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(features=IMAGES), r"features are uint8\[12, 8, 8, 3\] for 12 labels of int64; expected float32"),
        (dict(features=FEATURES[:5]), r"float32\[5, 5\] for 12 labels"),
        (dict(test_features=FEATURES[:, :4]), r"training features are \(5,\), test features \(4,\); expected the same"),
        (dict(owners=LABELS[:5]), "owners are no 12 integers; expected one for every label"),
        (dict(test_owners=LABELS / 2), "test_owners are no 12 integers"),
        (dict(owners=LABELS, client_names=np.array(NAMES[:2])), "owners are 0 to 3, but there are 2 names for them"),
        (dict(features=None), "holds labels, test_features, test_labels; expected features, labels"),
    ],
)
def test_wrong_arrays_in_a_file_of_features(tmp_path, changes, message):
    path = tmp_path / "data.npz"
    np.savez(path, **{name: array for name, array in (EXTRACTED | changes).items() if array is not None})
    check(f"data.npz: .*{message}", sources.features, path)


def test_unreadable_npz_files(tmp_path):
    path = tmp_path / "data.npz"
    check(r"data.npz: cannot be read as npz \(No such file or directory\)", sources.npz, path)
    np.savez_compressed(path, **WHOLE)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (b"", b"PK and then nothing", whole[:middle], whole[:middle] + bytes(99) + whole[middle + 99 :]):
        path.write_bytes(content)
        check("data.npz: cannot be read as npz .*save or fetch it again", sources.npz, path)
    with open(path, "wb") as file:
        np.save(file, IMAGES)
    check("data.npz: cannot be read as npz", sources.npz, path)


def test_pickles_are_never_loaded(tmp_path):
    """Pickles, of an array or of a whole file, are not executed."""

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    trap = np.empty(1, object)
    trap[0] = Trap()
    path = tmp_path / "data.npz"
    np.savez(path, **WHOLE | dict(class_names=trap))
    check("it holds Python objects, which are never loaded", sources.npz, path)
    trap.dump(path)
    check("it holds Python objects, which are never loaded", sources.npz, path)
    assert not (tmp_path / "sprung").exists()
