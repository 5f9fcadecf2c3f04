"""LEAF's json and TFF's sqlite files, written here in their formats: the same images, classes and clients back."""

import numpy as np
import pytest
from natural_data import example, leaf, tff
from small_data import check, draw

from fedjax_collapse import Federation, partition, sources

pytestmark = pytest.mark.usefixtures("own_cache")


def test_femnist_of_leaf(tmp_path):
    """Pixels of 0 to 1 in several files; a user of the test part alone is the last client."""
    images, labels = draw(14, (4, 4))
    rows, labels = (images.reshape(14, 16) / 255).tolist(), labels.tolist()
    leaf(tmp_path / "train" / "b.json", w2=(rows[:3], labels[:3]))
    leaf(tmp_path / "train" / "a.json", w3=(rows[3:8], labels[3:8]), w1=(rows[8:9], labels[8:9]), w0=([], []))
    leaf(tmp_path / "test" / "a.json", w1=(rows[9:11], labels[9:11]), w0=(rows[11:], labels[11:]))
    source = sources.leaf(tmp_path, normalisation="half")
    order = [*range(3, 9), *range(3)]
    np.testing.assert_array_equal(source.images, images[order][..., None])
    assert source.images.dtype == np.uint8 and source.labels.tolist() == [labels[row] for row in order]
    assert source.client_names == ("w1", "w2", "w3", "w0")
    assert source.owners.tolist() == [2] * 5 + [0] + [1] * 3 and source.test_owners.tolist() == [0, 0, 3, 3, 3]
    assert source.class_names == tuple("0123") and (source.mean, source.std) == (127.5, 127.5)
    leaf(tmp_path / "train" / "b.json", w2=([[0.0001] * 16] * 3, labels[:3]))  # not of 8 bits
    images = sources.leaf(tmp_path).images
    assert images.dtype == np.float32 and images[-1, 0, 0, 0] == np.float32(0.0255)


@pytest.mark.parametrize(("width", "low"), [(60, 0.0), (784, -0.42), (60, -3.0)])
def test_rows_of_numbers_are_features(tmp_path, width, low):
    """LEAF's synthetic data, and FedProx's MNIST, whose rows could be images but are not of 0 to 1."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.uniform(low, 1, (6, width)), 3)
    rows[0, 0] = low
    for part, own in (("train", rows), ("test", rows[::-1])):
        leaf(tmp_path / part / "a.json", b=(own[:4].tolist(), [0, 1, 2, 0]), a=(own[4:].tolist(), [1, 2]))
    source = sources.leaf(tmp_path)
    assert source.images.dtype == np.float32 and source.mean is None and source.client_names == ("a", "b")
    np.testing.assert_array_equal(source.images, rows.astype(np.float32))
    np.testing.assert_array_equal(source.test_images, rows[::-1].astype(np.float32))
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2] and source.owners.tolist() == [1, 1, 1, 1, 0, 0]
    federation = Federation.from_source(source, partition.given(source.labels, 2, source.owners))
    assert federation.input_shape == (width,) and federation.num_classes == 3


def test_wrong_files_of_leaf(tmp_path):
    file, row = tmp_path / "train" / "a.json", [0.5] * 16
    check(r"train: expected LEAF's \*.json with at least one user's examples", sources.leaf, tmp_path)
    leaf(tmp_path / "test" / "a.json", w=([row] * 3, [0, 1, 2]))
    for x, y, message in (
        ([[0.5] * 15] * 3, [0, 1, 2], r"training inputs are \(15,\), test inputs \(16,\)"),
        ([row, row, [0.5]], [0, 1, 2], "a.json: user w: .*expected images, or the texts of LEAF"),
        ([[2.0] * 15 + [np.nan]] * 3, [0, 1, 2], "user w: x has NaN or infinity, expected finite numbers"),
        ([row] * 3, [0, 1, -1], "y are 0, ..., expected classes from 0"),
        ([row] * 3, [0, 1, 9], "training labels are 0 to 9 for 3 examples"),
        ([row] * 3, [0, 1, 1], "test label 2 is none of the 2 classes of training"),
        ([["To be"]] * 3, list("tha"), "y are 't', ..., expected classes from 0; expected images, or the texts of"),
        (["To be, or not"] * 3, [0, 1, 2], "x are 'To be, or not', ..., expected rows of pixels or names of images"),
        ([row] * 2, [0, 1, 2], "user w has 2 x for 3 y, expected 3 of each; write it again"),
    ):
        leaf(file, w=(x, y))
        check(message, sources.leaf, tmp_path)
    leaf(file, w=([row] * 3, [0, 1, 2]), v=([[0.5] * 25], [0]))
    check(
        r"a.json: user v: inputs of \(5, 5, 1\), but the first ones are \(4, 4, 1\); expected images",
        sources.leaf,
        tmp_path,
    )
    leaf(file.with_name("b.json"), w=([row], [0]))
    leaf(file, w=([row] * 3, [0, 1, 2]))
    check("b.json: user w is also in another file; expected each in one", sources.leaf, tmp_path)
    file.with_name("b.json").unlink()
    leaf(file, w=([row] * 3, [0, 1, 2]), v=([[2.0] * 16], [0]))
    check("user v: pixels are 2 to 2, expected 0 to 1", sources.leaf, tmp_path)
    content = leaf(file, w=([row] * 3, [0, 1, 2])).read_text()
    for damaged, message in (
        ("", r"Expecting value.*"),
        (content[:-30], r"Expecting.*"),
        ("[]", r"list indices must be .*"),
        (content.replace("num_samples", "numbers"), "no 'num_samples'"),
        (content.replace('"w": ', '"v": '), "no 'w'"),
    ):
        file.write_text(damaged)
        check(rf"a.json: cannot be read \({message}\); expected LEAF's users, num_samples", sources.leaf, tmp_path)


def test_emnist_of_tff(tmp_path):
    images, labels = draw(8, (4, 4))
    writers = ["f9", "f10", "f9", "f9", "f10", "f9", "f8", "f9"]
    pairs = [
        (writer, example(label=label, pixels=image / np.float32(255)))
        for writer, image, label in zip(writers, images, labels, strict=True)
    ]
    file = tff(tmp_path / "emnist_all.sqlite", all_test=pairs[5:], all_train=pairs[:5])
    options = dict(train_split="all_train", test_split="all_test")
    source = sources.tff(file, **options)
    np.testing.assert_array_equal(source.images, images[:5, ..., None])
    np.testing.assert_array_equal(sources.tff(file, invert=True, **options).test_images, 255 - images[5:, ..., None])
    assert source.images.dtype == np.uint8 and source.labels.tolist() == labels[:5].tolist()
    assert source.client_names == ("f10", "f9", "f8") and source.owners.tolist() == [1, 0, 1, 1, 0]
    assert source.test_owners.tolist() == [1, 2, 1]
    np.testing.assert_array_equal(sources.tff(file, max_examples=2, **options).images, images[[0, 1, 2, 4], ..., None])


def test_wrong_files_of_tff(tmp_path):
    good, file = example(pixels=[0.5] * 4, label=0), tmp_path / "data.sqlite"
    check(r"data.sqlite: cannot be read \(unable to open database file\); expected a SQLite", sources.tff, file)
    for content in (b"no database " * 99, tff(file, train=[("a", good)] * 99).read_bytes()[:5000]):
        file.write_bytes(content)
        check(r"data.sqlite: cannot be read \(.*\); expected a SQLite file of TFF's, unpacked", sources.tff, file)
    tff(file, all_train=[("a", good)], all_test=[("a", good)])
    check("no split 'train' among all_train, all_test; set data.train_split", sources.tff, file)
    for wrong, message in (
        (good[:-3], "train, row 2 cannot be read .it is no tf.train.Example.; fetch the file again"),
        (example(tokens="a b"), "features tokens, expected numbers pixels or image, and label"),
        (example(pixels=[0.5] * 4), "features pixels, expected numbers pixels or image, and label"),
        (example(pixels=[0.5] * 4, label=[1, 2]), r"label is \[1, 2\], expected one class from 0"),
        (example(pixels=[0.5] * 5, label=0), "rows of 5 numbers, expected square images"),
        (example(pixels=[0.5] * 9, label=0), r"inputs of \(3, 3, 1\), but the first ones are \(2, 2, 1\)"),
        (example(pixels=[1.5] * 4, label=0), "pixels are 1.5 to 1.5, expected 0 to 1"),
        (example(image=[256] * 4, label=0), "image is 256 to 256, expected 0 to 255"),
        (7, r"train, row 2 cannot be read \(it is int, expected bytes\)"),
    ):
        tff(file, train=[("a", good), ("a", wrong)], test=[("a", good)])
        check(message, sources.tff, file)
    tff(file, train=[("a", good)], test=[("a", example(pixels=[0.5] * 4, label=5))])
    check("test label 5 is none of the 1 classes of training", sources.tff, file)
