"""Bad data are one line that names the file, what was expected and what to do; and nothing is left out unnoticed."""

import contextlib
import os
import tempfile
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import cases, check, one_line
from small_data import NAMES, draw, encode, save_classes, save_image, save_parquet, save_parts

from fedjax_collapse import Domains, Federation, partition, sources
from fedjax_collapse.data.store import StoreWriter

pytestmark = pytest.mark.usefixtures("own_cache")


@contextlib.contextmanager
def as_nobody():
    """Without the rights of root, who may read everything."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


@cases(
    (dict(labels=[0, 1, 0]), "4 images but 3 labels"),
    (dict(labels=np.arange(4) - 1), r"train labels: expected .*, got int64 \(4,\) from -1"),
    (dict(images=np.zeros((8, 8))), "expected .examples, height, width"),
    (dict(images=np.where(np.eye(8)[None].repeat(4, 0), 0.5, np.nan)), "train images: NaN"),
    (dict(test_images=np.zeros((4, 6, 8, 1))), r"training inputs are \(8, 8, 1\), test inputs \(6, 8, 1\)"),
    (dict(partition=[np.arange(5)]), "outside the 4 examples"),
    (dict(partition=[[0, 1, 2, 3], []]), "every client needs at least one example"),
    (dict(capacity=1), "capacity 1 is less than the 2"),
    (dict(class_names=("a",)), "label 1 has no name"),
    (dict(storage="disk"), "storage 'disk': expected one of device, host"),
    (dict(images=np.zeros((4, 1, 8, 9))), r"train images: shape \[4, 1, 8, 9\] is 1 high .*moveaxis"),
    (dict(class_names=("ant", "ant")), "data: class_names ant, ant: expected each exactly once"),
    (dict(partition=[[0, 1], [2.5]]), r"partition: client 1 has float64\[1\]; expected integers in one dimension"),
    (dict(mean=(1.0, 2.0)), r"data: mean \[1.0, 2.0\] and std 1.0; expected finite numbers, one or 1 of them"),
    # numbers that 32 bits do not have
    (dict(test_labels=np.array([0, 0, 1, 2**63], np.uint64)), "test labels: 9223372036854775808 does not fit"),
    (dict(labels=[0, 1, 0, 10**9]), "data: label 1000000000 would make 1000000001 classes of 8 .*class_names"),
    (dict(images=np.full((4, 8, 8), 1e300)), r"train images: 1e\+300 does not fit into float32; scale"),
    (dict(images=np.full((4, 8, 8), 2**24 + 1)), "train images: 16777217 is more than float32 can count to"),
    (dict(images=np.ma.masked_equal(np.eye(8)[None].repeat(4, 0), 0)), "train images: some values are masked"),
    (dict(images=[[1, 2], [3]]), "train images: list is no array"),
    (dict(images=np.full((4, 8, 8), 3e38), mean=-3e38), "train inputs: values of .* do not fit into float32"),
    (dict(std=1e-39), "train inputs: values of 0 to 1 minus the mean over the std do not fit into float32"),
    (dict(std=1e-50), "data: mean 0.0 and std 0.0; expected"),
    # what is no partition
    (dict(partition=None), "partition: NoneType, expected for each client the indices of its examples"),
    (dict(capacity=-1), "federation: capacity -1 is too small"),
    (dict(capacity=10**9), "federation: capacity 1000000000 is more than a client can own of 4 examples"),
    # domains
    (dict(domains=Domains(("a",), [0] * 4, [0, 0, 0, 1])), "test domains: 1 is none of the 1 names"),
    (dict(domains=Domains(("a",), [0] * 4, [0] * 3)), r"test domains: shape \(3,\), expected one per example"),
    (dict(domains=Domains(("a", "a"), [0] * 4, [0] * 4)), "data: names of domains a, a: expected each exactly"),
)
def test_arrays_that_are_no_data(changes, message):
    images, labels = np.zeros((4, 8, 8, 1), np.uint8), np.arange(4) % 2
    images[0] = 1
    data = dict(images=images, labels=labels, test_images=images, test_labels=labels, partition=[[0, 1], [2, 3]])
    check(message, Federation.from_arrays, **{**data, **changes})


@cases(
    (dict(inputs=np.array([[2**64 - 1], [0]], np.uint64)), "train inputs: 18446744073709551615 does not fit"),
    (dict(inputs=3), r"train data: inputs \(\) and labels \(2,\), expected one of each example"),
    (dict(labels=[0, 3], class_names=("a", "b")), "data: label 3 has no name among 2 class names"),
)
def test_inputs_that_are_no_data(changes, message):
    data = dict(inputs=np.zeros((2, 1), int), labels=[0, 1], test_inputs=np.zeros((2, 1), int), test_labels=[0, 1])
    check(message, Federation.from_inputs, **{**data, "partition": [[0, 1]], **changes})


def test_arrays_that_stay_what_they_are():
    """Also lists, JAX arrays, small floats and integers, and as many classes as are named."""
    images = np.arange(4 * 64).reshape(4, 8, 8)
    labels = [0, 1, 0, 20_000]
    names = tuple(map(str, range(20_001)))
    for of in (jnp.asarray, np.float16, np.int16, np.ndarray.tolist, lambda x: x.astype(jnp.bfloat16)):
        made = Federation.from_arrays(of(images), labels, [[0, 1], [2, 3]], of(images), labels, class_names=names)
        assert made.train.inputs.dtype == np.float32 and made.num_classes == 20_001
        np.testing.assert_array_equal(made.train.inputs[..., 0], images)
    assert str(made) == "Federation(2 clients, 4 training and 4 test examples [8, 8, 1], 20001 classes)"
    bits = Federation.from_inputs(
        images > 99, labels, np.array([[0, 1], [2, 3]]), images > 99, labels, class_names=(), capacity=np.int64(4)
    )
    assert bits.train.inputs.dtype == bool and bits.ownership.rows.shape == (2, 4)
    tokens = np.array([[2**31 - 1, -(2**31) + 1]])
    kept = Federation.from_inputs(tokens, [0], [[0]], tokens, [0])
    assert kept.train.inputs.tolist() == tokens.tolist()
    space = np.zeros(320, np.uint8)
    images = space[-space.ctypes.data % 64 :][:256].reshape(4, 8, 8)  # where a CPU's device array may lie
    images[0] = 1
    made = Federation.from_arrays(images, labels, [[0, 1], [2, 3]], images, labels, class_names=names)
    images[0] = 2
    assert made.train.inputs.max() == 1


# folders


@pytest.fixture
def root(tmp_path):
    """Two images of each of four classes for training, and as many for the test."""
    return save_parts(tmp_path / "data")


def test_wrong_layouts(root, tmp_path):
    check("nowhere: there is no such folder", sources.folder, tmp_path / "nowhere")
    check("0.png: there is no such folder", sources.folder, next(root.rglob("*.png")).rename(tmp_path / "0.png"))
    (tmp_path / "empty" / "train").mkdir(parents=True)
    check("empty: has train, expected train next to test or val, each with class", sources.folder, tmp_path / "empty")
    (tmp_path / "empty" / "test").mkdir()
    check("train: no class folder in it; expected <class>/<image>", sources.folder, tmp_path / "empty")
    (tmp_path / "empty" / "train" / "ant").mkdir()
    check("train/ant: no image in this class folder; add some, or remove", sources.folder, tmp_path / "empty")
    save_classes(tmp_path / "untested" / "train", *draw(8, (8, 8, 3)))
    check("untested: has train, expected train next to test or val", sources.folder, tmp_path / "untested")
    (root / "test" / "ant").rename(root / "test" / "eel")
    check(r"eel/\d+.png: label 'eel' is not among the 4 classes of training, .* add it to t", sources.folder, root)
    save_classes(tmp_path / "pacs" / "photo", *draw(12, (8, 8, 3)))
    check("pacs: one class in all, 'photo'; .* with domains=True", sources.folder, tmp_path / "pacs")
    check("data: with domains=True expected a folder for each domain", sources.folder, root, domains=True)
    options = dict(domains=True, test_per_class=3)
    check("ant: 3 images, of which 3 should be for the test; lower", sources.folder, tmp_path / "pacs", **options)


@cases(
    (("train", "Training", "test"), "named like parts: Training, train; expected train, test and val"),
    (("train", "test", "train_extra"), "named like parts: train_extra"),
    (("train", "test-easy", "test-hard"), "named like parts: test-easy, test-hard"),
    (("test", "ant"), "has test, expected train next to test or val"),
    (("val", "test"), "has test, val, expected train"),
)
def test_folders_like_parts_that_are_not_understood(names, message, tmp_path):
    for name in names:
        save_classes(tmp_path / "data" / name, *draw(8, (8, 8, 3)))
    check(message, sources.folder, tmp_path / "data")


def test_wrong_options(root):
    for options, message in (
        (dict(classes=("ant", "eel")), "no class 'eel' among ant, bee, cat, dog"),
        (dict(channels=2), "channels 2: expected one of 0, 1, 3"),
        (dict(normalisation="cifar"), "normalisation 'cifar': expected one of unit"),
        (dict(channels=1, normalisation="cifar10"), "'cifar10' is for 3 channels, the images have 1"),
    ):
        check(message, sources.folder, root, **options)


@cases(
    (lambda file: file.write_bytes(file.read_bytes()[:-60]), "9.png: cannot be read as an image .*remove"),
    (lambda file: file.rename(file.with_suffix(".heic")), "9.heic: no image by its name, expected .png.*convert"),
    (lambda file: (file.unlink(), file.symlink_to("gone.png")), r"9.png: cannot .*\(No such file or directory\)"),
    (lambda file: save_image(file, draw(1, (8, 12, 3))[0][0]), "9.png: 12 x 8 pixels, but .*0.* has 8 x 8; set"),
)
def test_a_wrong_image_in_a_class_folder(damage, message, root):
    file = root / "test" / "dog" / "9.png"
    save_image(file, draw(1, (8, 8, 3))[0][0])
    assert len(sources.folder(str(root)).test_images) == 9
    damage(file)
    check(message, sources.folder, root)


def test_pipes_are_not_waited_for(root):
    """Reading them would never end."""
    pipe = root / "test" / "dog" / "9.png"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.open("wb").close(), daemon=True)  # so that one who reads it continues
    writer.start()
    check("dog/9.png: it is neither a file nor a folder; remove it", sources.folder, root)
    for source in (sources.npz, sources.isic2019):
        arguments = (pipe,) if source is sources.npz else (root, pipe)
        check("9.png: it is neither a file nor a folder", source, *arguments)
    check("9.png: it is neither", lambda path: partition.from_file(np.zeros(3, int), 2, path), pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # or the writer would wait, and fail once it may not open it
    writer.join()
    os.close(reader)


def test_what_may_not_be_read():
    """A file, and a folder whose images would else be missing unnoticed."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        save_parts(root)
        np.savez(root / "data.npz", images=0)
        folder, file = root / "train" / "bee", next((root / "test" / "dog").iterdir())
        for path in (folder, file, root / "data.npz"):
            path.chmod(0)
        with as_nobody():
            check("train/bee: cannot be listed .Permission denied.; make it readable", sources.folder, root)
            check("data.npz: cannot be read as npz .Permission denied", sources.npz, root / "data.npz")
        folder.chmod(0o755)
        with as_nobody():
            check(f"{file}: cannot be opened .permission denied.; allow reading it", sources.folder, root)


def test_wrong_split_files_of_isic2019(tmp_path):
    split = tmp_path / "train_test_split"
    check("train_test_split: cannot be read .No such file or directory", sources.isic2019, tmp_path, split)
    for row, message in (
        ("ISIC_0,0,0", "expected FLamby's train_test_split"),
        ("ISIC_0,0,6,train", "train_test_split: ISIC_0 has centre 6, expected 0 to 5"),
        ("ISIC_0,8,0,train", "ISIC_0.jpg: label 8 is not among the 8 classes"),
        ("ISIC_0,0,0,train", r"ISIC_0.jpg: cannot be read as an image \(No such file"),
    ):
        split.write_text(f"image,target,center,fold\n{row}\nISIC_1,0,0,test\n")
        check(message, sources.isic2019, tmp_path, split)


# tables


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
        (images, labels - 1, NAMES, r"row \d: label -1 is not among the 4 classes of .*, 0 to 3; .*labels are known"),
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
    for metadata in ("{", '{"info": 0}', "[" * 100_000):
        pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": metadata}), train)
        check("train.parquet: Hugging Face's metadata in it cannot be read", sources.parquet, root)


IMAGES, LABELS = draw(12, (8, 8, 3))
WHOLE = dict(images=IMAGES, labels=LABELS, test_images=IMAGES, test_labels=LABELS)
BY_DOMAIN = dict(domains=LABELS, test_domains=LABELS, domain_names=np.array(NAMES))


FEATURES = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
EXTRACTED = dict(features=FEATURES, labels=LABELS, test_features=FEATURES, test_labels=LABELS)


@cases(
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
    (dict(images=None), "holds labels, test_images, test_labels; expected images, labels"),
    (dict(features=IMAGES), r"features are uint8\[12, 8, 8, 3\] for 12 labels of int64; expected float32"),
    (dict(test_features=FEATURES[:, :4]), r"training features are \(5,\), test features \(4,\); expected the same"),
    (dict(owners=LABELS[:5]), "owners are no 12 integers; expected one for every label"),
    (dict(test_owners=LABELS / 2), "test_owners are no 12 integers"),
    (dict(owners=LABELS, client_names=np.array(NAMES[:2])), "owners are 0 to 3, but there are 2 names for them"),
    (dict(features=None), "holds labels, test_features, test_labels; expected features, labels"),
)
def test_wrong_arrays_in_a_file_of_images_or_features(changes, message, tmp_path):
    path, is_of_features = tmp_path / "data.npz", any(name in message for name in ("features", "owners"))
    arrays = (EXTRACTED if is_of_features else WHOLE) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    check(f"data.npz: .*{message}", sources.features if is_of_features else sources.npz, path)


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


def test_broken_annotations_of_tiny_imagenet(root):
    save_image(root / "val" / "images" / "0.png", draw(1, (8, 8, 3))[0][0])
    annotations = root / "val" / "val_annotations.txt"
    for content in (b"0.png\n", b"\xff\xfe\x00"):
        annotations.write_bytes(content)
        check("val_annotations.txt: expected lines of <image> <class>", sources.folder, root)
    annotations.write_text("0.png eel 0 0 7 7\n")
    check("val/images/0.png: label 'eel' is not among the 4 classes", sources.folder, root)


def test_labels_of_any_inputs():
    """Integers in one dimension are classes unless class_names are (); others are of 0 and 1, or no classes."""
    inputs, labels, names = np.zeros((6, 4)), np.arange(6) % 3, ("a", "b", "c")
    columns = np.eye(3, dtype=int)[labels]

    def make(labels=labels, test_labels=None, **options):
        test = labels if test_labels is None else test_labels
        return Federation.from_inputs(inputs, labels, [[0, 1, 2], [3, 4, 5]], inputs, test, **options)

    assert make().class_names == make(test_labels=labels[:1].repeat(6)).class_names == ("0", "1", "2")
    for without in (make(class_names=()), make(labels / 2), make(columns), make(columns, pad=0), make(labels > 0)):
        assert without.class_names == ()
    assert make(columns > 0, class_names=names).class_counts().sum() == 6
    for change, message in (
        (dict(labels=labels - 1), r"data: label -1: expected classes from 0, or class_names=\(\) if labels are no"),
        (dict(test_labels=labels - 1), "data: label -1: expected"),
        (dict(test_labels=labels - 1, class_names=names), "test labels: expected .* from -1"),
        (dict(labels=labels * 10**6), r"data: label 2000000 would make .*, or \(\) if labels are no classes"),
        (dict(labels=labels[:0]), "train labels: expected at least one integer"),
        (dict(labels=columns[:, :2], class_names=names), r"train labels: shape \(6, 2\) from 0 to 1, expected .* of t"),
        (dict(labels=labels[:, None], class_names=names), r"train labels: shape \(6, 1\) from 0 to 2, expected intege"),
        (dict(labels=columns, test_labels=-columns, class_names=names), "test labels: .* from -1 to 0, expected"),
        (dict(labels=columns - 1, class_names=names, pad=0), "train data: label -1 has no name among 3 class names"),
        (dict(labels=columns, test_labels=columns[:, :2]), r"training labels are \(3,\), test labels \(2,\); expect"),
        (dict(labels=np.where(labels > 1, np.nan, labels)), "train labels: NaN or infinity among the values"),
        (dict(test_labels=np.where(labels > 1, np.inf, labels)), "test labels: NaN or infinity among the values"),
    ):
        check(message, make, **change)


def test_labels_of_a_source_made_by_hand():
    labels, images = np.arange(6) % 3, np.zeros((6, 2, 2, 1), np.uint8)
    images[0] = 1
    source = sources.Source(images.tolist(), labels.tolist(), images, labels, 0.0, 1.0, ("a", "b", "c"))
    assert Federation.from_source(source, [[0, 1, 2], [3, 4, 5]]).num_classes == 3
    wrong = source._replace(test_labels=labels + 1)
    check("test data: label 3 has no name", Federation.from_source, wrong, [[0, 1, 2], [3, 4, 5]])


@cases(
    ("next_word", [[1, 3]], "client 'a' data: label 3 has no name among 3 class names"),
    ("next_word", [[-1, 2]], "client 'a' data: label -1 has no name"),
    ("multi_label", [[0, 1]], r"client 'a' labels: shape \(1, 2\) from 0 to 1, expected .* of the 3 class names"),
)
def test_labels_of_a_store(task, labels, message, tmp_path):
    with one_line(message), StoreWriter(tmp_path / "s", ("a", "b", "c"), task=task) as store:
        store.add("a", np.ones((1, 2), int), np.array(labels))
