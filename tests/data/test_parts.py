"""Which files of a folder of tables are trained on and tested on: all of one data set, and nothing else."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from small_data import NAMES, assert_parts, assert_same_examples, check, draw, encode, save_parquet

from experiments.commands.convert import open_stream
from fedjax_collapse import UserError, sources
from fedjax_collapse.data.stream import collect

EXAMPLES = {name: draw(8, (8, 8, 3), seed) for seed, name in enumerate(("train", "test", "validation", "other"))}


pytestmark = pytest.mark.usefixtures("own_cache")


def save(root, **files):
    """For each name of a file, with __ for folders, the examples of that name."""
    for file, name in files.items():
        save_parquet(root / f"{file.replace('__', '/')}.parquet", *EXAMPLES[name])
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"train": "train", "test": "test"},
        {"TRAIN": "train", "Testing": "test"},
        {"train-00000-of-00001-a09b74b3ef9c3b56": "train", "test-00000-of-00001-0123456789abcdef": "test"},
        {"plain_text__train-00000-of-00001": "train", "plain_text__test-00000-of-00001": "test"},
        {"default__train__0000": "train", "default__test__0000": "test"},
        {"data__train__train-00000-of-00001": "train", "data__test__test": "test"},
        {"cifar10-train": "train", "cifar10-test": "test"},
    ],
)
def test_how_the_files_of_one_data_set_are_named(tmp_path, files):
    assert_parts(sources.parquet(save(tmp_path / "data", **files)), EXAMPLES["train"], EXAMPLES["test"])


def test_other_parts_are_not_read_and_named(tmp_path):
    """Neither with training nor with the test: SVHN's extra part, ImageNet's harder tests."""
    root = save(tmp_path / "data", train="train", test="test", train_extra="other", extra="other")
    save(root, **{"test_hard-00000-of-00001": "other"})
    message = r"data: extra.parquet, test_hard-00000-of-00001.parquet, train_extra.parquet not read, as no part"
    with pytest.warns(UserWarning, match=message):
        assert_parts(sources.parquet(root), EXAMPLES["train"], EXAMPLES["test"])


def test_a_validation_part_is_a_test_part_only_if_there_is_no_other(tmp_path):
    root = save(tmp_path / "data", train="train", validation="validation")
    with pytest.warns(UserWarning, match="data: there is no test part; the test part is validation"):
        assert_parts(sources.parquet(root), EXAMPLES["train"], EXAMPLES["validation"])
    save(root, test="test")
    with pytest.warns(UserWarning, match="validation is not used, as there are training and test parts"):
        assert_parts(sources.parquet(root), EXAMPLES["train"], EXAMPLES["test"])
    assert_parts(sources.parquet(root, validation="test"), EXAMPLES["train"], EXAMPLES["validation"])
    trained = sources.parquet(root, validation="train")
    both = [np.concatenate(pair) for pair in zip(EXAMPLES["train"], EXAMPLES["validation"], strict=True)]
    assert_same_examples(trained.images, trained.labels, *both)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "train", "old__train": "train", "test": "test"}, r"several .* \(old/train.parquet, test.parquet\)"),
        ({"ant-train": "train", "bee-train": "train"}, r"several data sets .* \(ant-train.parquet,"),
        ({"train-00000-of-00002": "train", "test": "test"}, "of the 2 shards .* there are 0; expected each once"),
        (
            {"train-00000-of-00001": "train", "train-00000-of-00002": "train", "train-00001-of-00002": "train"},
            "of the 1 shards of train-00000-of-00001.parquet there are 0, and others",
        ),
        (
            {"train-00000-of-00001": "train", "train-00000-of-00001-0123456789abcdef": "train"},
            "of the 1 shards .* there are 0, 0; expected each once",
        ),
        ({"train": "train", "val": "test", "validation": "test"}, "it has val and validation, of which one is"),
        ({"train_extra": "train", "all": "test"}, r"no train\*.parquet among all.parquet, train_extra.parquet; expe"),
    ],
)
def test_what_is_not_clear_is_an_error_that_lists_it(tmp_path, files, message):
    check(f"data: {message}", sources.parquet, save(tmp_path / "data", **files))


@pytest.mark.parametrize("path", ["data", "data/train.parquet"])
def test_without_a_test_part_some_of_each_class_are_held_out(tmp_path, path):
    save(tmp_path / "data", train="train")
    with pytest.warns(UserWarning, match="there is no test part; 0.5 of each class are held out"):
        source = sources.parquet(tmp_path / path, test_fraction=0.5)
    pool = source.pooled()
    assert_same_examples(pool.images, pool.labels, *EXAMPLES["train"])
    assert np.bincount(source.test_labels).tolist() == [1] * 4
    with pytest.warns(UserWarning, match="there is no test part"):
        other = sources.parquet(tmp_path / path, test_fraction=0.5, seed=3)
    assert not np.array_equal(source.images, other.images)


def with_names(root, order=NAMES):
    """Tables whose labels are texts, without Hugging Face's metadata, and with a column of clients."""
    for part in ("train", "test"):
        images, labels = EXAMPLES[part]
        names, clients = [order[label] for label in labels], [f"u{row % 3}" for row in range(len(labels))]
        contents = [{"bytes": encode(image), "path": None} for image in images]
        table = pyarrow.table({"image": contents, "label": names, "user": clients})
        root.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, root / f"{part}.parquet")


def test_labels_may_be_names(tmp_path):
    with_names(tmp_path / "data")
    source = sources.parquet(tmp_path / "data")
    assert_parts(source, EXAMPLES["train"], EXAMPLES["test"])
    assert source.class_names == NAMES
    with_names(tmp_path / "data", ("9", "10", "1", "x"))  # numbers by value, before others
    source = sources.parquet(tmp_path / "data", classes=("x", "9"))
    assert source.class_names == ("x", "9")
    assert sources.parquet(tmp_path / "data").class_names == ("1", "9", "10", "x")
    path = tmp_path / "data" / "train.parquet"
    for wrong, message in (
        ("", "train.parquet: row 1: the label is empty, expected a class"),
        ("-1", "train.parquet: row 1: label -1, expected a class"),
    ):
        names = ["9", wrong, *"19x19x"]
        table = pyarrow.parquet.read_table(path).drop_columns("label").append_column("label", [names])
        pyarrow.parquet.write_table(table, path)
        check(message, sources.parquet, tmp_path / "data")
    images, labels = EXAMPLES["test"]
    for wrong, message in (
        (["zebra"] * 8, "test.parquet, row 0: label 'zebra', expected one of the 4 classes"),
        (labels, "test.parquet, row 0: label .* expected one of the 4 classes of training"),
    ):
        with_names(tmp_path / "data")
        save_parquet(tmp_path / "data" / "test.parquet", images, wrong, ())
        check(message, sources.parquet, tmp_path / "data")


def test_names_are_read_client_by_client(tmp_path):
    with_names(tmp_path / "data")
    options = dict(client_column="user")
    stream = open_stream(f"parquet:{tmp_path / 'data'}", options)
    gathered, source = collect(stream), sources.parquet(tmp_path / "data", **options)
    assert tuple(gathered["class_names"]) == source.class_names == NAMES
    for part in ("", "test_"):
        images, labels = (getattr(source, f"{part}{name}") for name in ("images", "labels"))
        assert_same_examples(gathered[f"{part}images"], gathered[f"{part}labels"], images, labels)
    images, _ = EXAMPLES["test"]
    table = pyarrow.parquet.read_table(tmp_path / "data" / "test.parquet").drop_columns("label")
    table = table.append_column("label", [["ant"] * 7 + ["zebra"]])
    pyarrow.parquet.write_table(table, tmp_path / "data" / "test.parquet")
    with pytest.raises(UserError, match=r"test.parquet, row 7: label 'zebra', expected one of the 4 classes"):
        collect(open_stream(f"parquet:{tmp_path / 'data'}", options))
    with pytest.raises(UserError, match="scale=max needs all images, but clients are read one by one; give the number"):
        open_stream(f"parquet:{tmp_path / 'data'}", options | dict(scale="max"))


def test_what_hugging_face_leaves_beside_its_data(tmp_path):
    """``cache-*.arrow``, of ``map``."""
    for part in ("train", "test"):
        save_parquet(tmp_path / f"{part}.parquet", *EXAMPLES[part])
        table = pyarrow.parquet.read_table(tmp_path / f"{part}.parquet")
        (tmp_path / "data" / part).mkdir(parents=True)
        for name in ("data-00000-of-00001", "cache-1b2c3d"):
            with pyarrow.ipc.new_stream(tmp_path / "data" / part / f"{name}.arrow", table.schema) as stream:
                stream.write_table(table)
    with pytest.warns(UserWarning, match=r"test/cache-1b2c3d.arrow, train/cache-1b2c3d.arrow not read, as no part"):
        assert_parts(sources.arrow(tmp_path / "data"), EXAMPLES["train"], EXAMPLES["test"])


def test_files_of_several_kinds(tmp_path):
    for name in ("train.csv", "test.tsv", "words.parquet"):
        (tmp_path / name).write_text("text,label\na,1\nb,0\n")
    check("it has parts in files of several kinds, CSV, TSV; move those of all but one", sources.texts, tmp_path)
    (tmp_path / "test.tsv").rename(tmp_path / "test.csv")
    assert len(sources.texts(tmp_path, vocabulary_size=2).images) == 2
