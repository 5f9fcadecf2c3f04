"""Tables: which files are of training and test, features, classes and clients of every kind of file, wrong values."""

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest
from conftest import cases, check
from small_data import NAMES, assert_fields, assert_parts, assert_same, draw, save_arrow, save_parquet

from experiments.commands.convert import open_stream
from fedjax_collapse import Federation, sources
from fedjax_collapse.data.stream import collect

EXAMPLES = {name: draw(8, (8, 8, 3), seed) for seed, name in enumerate(("train", "test", "validation", "other"))}


pytestmark = pytest.mark.usefixtures("own_cache")


def save(root, **files):
    """For each name of a file, with __ for folders, the examples of that name."""
    for file, name in files.items():
        save_parquet(root / f"{file.replace('__', '/')}.parquet", *EXAMPLES[name])
    return root


@cases(
    {"train": "train", "test": "test"},
    {"TRAIN": "train", "Testing": "test"},
    {"train-00000-of-00001-a09b74b3ef9c3b56": "train", "test-00000-of-00001-0123456789abcdef": "test"},
    {"plain_text__train-00000-of-00001": "train", "plain_text__test-00000-of-00001": "test"},
    {"default__train__0000": "train", "default__test__0000": "test"},
    {"data__train__train-00000-of-00001": "train", "data__test__test": "test"},
    {"cifar10-train": "train", "cifar10-test": "test"},
)
def test_how_the_files_of_one_data_set_are_named(files, tmp_path):
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
    assert_same(trained.images, trained.labels, *both)


@cases(
    ({"train": "train", "old__train": "train", "test": "test"}, r"several .* \(old/train.parquet, test.parquet\)"),
    ({"ant-train": "train", "bee-train": "train"}, r"several data sets .* \(ant-train.parquet,"),
    ({"train-00000-of-00002": "train", "test": "test"}, "of the 2 shards .* there are 0; expected each once"),
    (
        {f"train-0000{shard}": "train" for shard in ("0-of-00001", "0-of-00002", "1-of-00002")},
        "there are 0, and othe",
    ),
    ({f"train-00000-of-00001{of}": "train" for of in ("", "-0123456789abcdef")}, "of the 1 shards .* are 0, 0; e"),
    ({"train": "train", "val": "test", "validation": "test"}, "it has val and validation, of which one is"),
    ({"train_extra": "train", "all": "test"}, r"no train\*.parquet among all.parquet, train_extra.parquet; expe"),
)
def test_what_is_not_clear_is_an_error_that_lists_it(files, message, tmp_path):
    check(f"data: .*{message}", sources.parquet, save(tmp_path / "data", **files))


@cases("data", "data/train.parquet")
def test_without_a_test_part_some_of_each_class_are_held_out(path, tmp_path):
    save(tmp_path / "data", train="train")
    with pytest.warns(UserWarning, match="there is no test part; 0.5 of each class are held out"):
        source = sources.parquet(tmp_path / path, test_fraction=0.5)
    pool = source.pooled()
    assert_same(pool.images, pool.labels, *EXAMPLES["train"])
    assert np.bincount(source.test_labels).tolist() == [1] * 4
    with pytest.warns(UserWarning, match="there is no test part"):
        other = sources.parquet(tmp_path / path, test_fraction=0.5, seed=3)
    assert not np.array_equal(source.images, other.images)


def with_names(root, order=NAMES):
    """Tables whose labels are texts, without Hugging Face's metadata, and with a column of clients."""
    for part in ("train", "test"):
        images, labels = EXAMPLES[part]
        clients = [f"u{row % 3}" for row in range(len(labels))]
        save_parquet(root / f"{part}.parquet", images, [order[label] for label in labels], (), user=clients)


def replace_labels(file, labels):
    table = pyarrow.parquet.read_table(file).drop_columns("label").append_column("label", [labels])
    pyarrow.parquet.write_table(table, file)


def test_labels_may_be_names(tmp_path):
    with_names(tmp_path / "data")
    source = sources.parquet(tmp_path / "data")
    assert_parts(source, EXAMPLES["train"], EXAMPLES["test"])
    assert_fields(source, class_names=NAMES)
    with_names(tmp_path / "data", ("9", "10", "1", "x"))  # numbers by value, before others
    assert_fields(sources.parquet(tmp_path / "data", classes=("x", "9")), class_names=("x", "9"))
    assert_fields(sources.parquet(tmp_path / "data"), class_names=("1", "9", "10", "x"))
    for wrong, message in (("", "the label is empty, expected a class"), ("-1", "label -1, expected a class")):
        replace_labels(tmp_path / "data" / "train.parquet", ["9", wrong, *"19x19x"])
        check(f"train.parquet: row 1: {message}", sources.parquet, tmp_path / "data")
    with_names(tmp_path / "data")
    save_parquet(tmp_path / "data" / "test.parquet", EXAMPLES["test"][0], ["zebra"] * 8, ())
    check("test.parquet, row 0: label 'zebra' is not among the 4 classes", sources.parquet, tmp_path / "data")
    save_parquet(tmp_path / "data" / "test.parquet", *EXAMPLES["test"], ())
    check("test.parquet, row 0: label 1 is not among the 4 classes of training", sources.parquet, tmp_path / "data")


def test_names_are_read_client_by_client(tmp_path):
    with_names(tmp_path / "data")
    options = dict(client_column="user")
    stream = open_stream(f"parquet:{tmp_path / 'data'}", options)
    gathered, source = collect(stream), sources.parquet(tmp_path / "data", **options)
    assert tuple(gathered["class_names"]) == source.class_names == NAMES
    for part in ("", "test_"):
        images, labels = (getattr(source, f"{part}{name}") for name in ("images", "labels"))
        assert_same(gathered[f"{part}images"], gathered[f"{part}labels"], images, labels)
    replace_labels(tmp_path / "data" / "test.parquet", ["ant"] * 7 + ["zebra"])
    check(r"test.parquet, row 7: label 'zebra' is not among the 4 classes of training", collect, stream)
    message = "scale=max needs all images, but clients are read one by one; give the number"
    check(message, open_stream, f"parquet:{tmp_path / 'data'}", options | dict(scale="max"))


def test_what_hugging_face_leaves_beside_its_data(tmp_path):
    """``cache-*.arrow``, of ``map``."""
    for part in ("train", "test"):
        save_parquet(tmp_path / f"{part}.parquet", *EXAMPLES[part])
        table = pyarrow.parquet.read_table(tmp_path / f"{part}.parquet")
        for name in ("data-00000-of-00001", "cache-1b2c3d"):
            save_arrow(tmp_path / "data" / part / f"{name}.arrow", table)
    with pytest.warns(UserWarning, match=r"test/cache-1b2c3d.arrow, train/cache-1b2c3d.arrow not read, as no part"):
        assert_parts(sources.arrow(tmp_path / "data"), EXAMPLES["train"], EXAMPLES["test"])


def test_files_of_several_kinds(tmp_path):
    for name in ("train.csv", "test.tsv", "words.parquet"):
        (tmp_path / name).write_text("text,label\na,1\nb,0\n")
    check("it has parts in files of several kinds, CSV, TSV; move those of all but one", sources.texts, tmp_path)
    (tmp_path / "test.tsv").rename(tmp_path / "test.csv")
    assert len(sources.texts(tmp_path, vocabulary_size=2).images) == 2


RNG = np.random.default_rng(0)
ROWS = 24
COLUMNS = {
    "age": RNG.integers(20, 90, ROWS),
    "diagnosis": [("ill", "well", "unknown")[row % 3] for row in range(ROWS)],
    "pressure": np.round(RNG.normal(120, 20, ROWS), 2),
    "hospital": [f"H{row % 4}" for row in range(ROWS)],
}
FEATURES = np.stack([COLUMNS["age"], COLUMNS["pressure"]], 1).astype(np.float32)
OPTIONS = dict(label_column="diagnosis", client_column="hospital")


def save_table(file, columns=COLUMNS, rows=slice(None)):
    """The table in the kind of file that its name says."""
    lists = {name: np.asarray(values)[rows].tolist() for name, values in columns.items()}
    table = pyarrow.table(lists)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    elif file.suffix == ".arrow":
        save_arrow(file, table, "file")
    elif file.suffix == ".jsonl":
        table.to_pandas().to_json(file, orient="records", lines=True)
    else:
        table.to_pandas().to_csv(file, sep="\t" if file.suffix == ".tsv" else ",", index=False)
    return file


def as_rows(features, labels, *more):
    return sorted(zip(map(tuple, features.tolist()), labels, *more, strict=True))


@cases("csv", "tsv", "jsonl", "parquet", "arrow")
def test_every_kind_of_file(suffix, tmp_path):
    source = sources.table(save_table(tmp_path / f"patients.{suffix}"), **OPTIONS, test_fraction=0.34)
    assert source.images.dtype == np.float32
    assert_fields(source, class_names=("ill", "unknown", "well"), client_names=("H0", "H1", "H2", "H3"), mean=None)
    pool = source.pooled()
    names = [source.class_names[label] for label in pool.labels]
    clients = [source.client_names[owner] for owner in pool.owners]
    assert as_rows(pool.images, names, clients) == as_rows(FEATURES, COLUMNS["diagnosis"], COLUMNS["hospital"])
    assert np.bincount(source.test_owners).tolist() == [2] * 4
    federation = Federation.from_source(source, [np.arange(8), np.arange(8, 16)])
    assert federation.input_shape == (2,) and federation.num_classes == 3


def test_parts_in_files_and_in_folders(tmp_path):
    train, test = (
        save_table(tmp_path / f"{part}.csv", rows=rows)
        for part, rows in (("train", slice(16)), ("test", slice(16, 24)))
    )
    by_file = sources.table(train, test_file=test, **OPTIONS)
    by_folder = sources.table(tmp_path, **OPTIONS)
    for source in (by_file, by_folder):
        expected = FEATURES[:16], COLUMNS["diagnosis"][:16]
        assert as_rows(source.images, [source.class_names[label] for label in source.labels]) == as_rows(*expected)
        assert as_rows(source.test_images, source.test_owners) == as_rows(FEATURES[16:], [*range(4)] * 2)
    check("it has a test part, test.csv; leave out data.test_file", sources.table, tmp_path, test_file=test, **OPTIONS)
    save_table(test, {name: values for name, values in COLUMNS.items() if name != "hospital"}, slice(16, 24))
    assert_fields(sources.table(tmp_path, **OPTIONS), test_owners=None)


def test_features_are_chosen_and_standardised_by_training(tmp_path):
    constant = COLUMNS | {"constant": [7] * ROWS}
    save_table(tmp_path / "train.parquet", constant, slice(16))
    save_table(tmp_path / "test.parquet", {name: constant[name] for name in [*constant][::-1]}, slice(16, 24))
    source = sources.table(tmp_path, **OPTIONS, standardised=True)
    columns = np.stack([COLUMNS["age"], COLUMNS["pressure"], [7] * ROWS], 1)
    np.testing.assert_allclose(source.mean, columns[:16].mean(0), rtol=1e-6)
    np.testing.assert_allclose(source.std, [*columns[:16, :2].std(0), 1], rtol=1e-6)
    assert as_rows(source.test_images, source.test_owners) == as_rows(columns[16:].astype(np.float32), [*range(4)] * 2)
    chosen = sources.table(tmp_path, **OPTIONS, feature_columns=("pressure", "age"))
    assert as_rows(chosen.images, chosen.owners) == as_rows(FEATURES[:16, ::-1], [*range(4)] * 4)


@cases(
    ("age", 5, "old", "patients.csv: row 5 has 'old' in 'age', expected a number of 32 bits; correct it, or"),
    ("pressure", 0, "1e300", "row 0 has '1e300' in 'pressure', expected a number of 32 bits"),
    ("diagnosis", 3, "", "patients.csv: row 3: the label is empty, expected a class"),
    ("hospital", 2, "", "patients.csv: row 2 has client '', expected a name or a number"),
)
def test_wrong_values_are_named(column, row, value, message, tmp_path):
    values = list(map(str, COLUMNS[column]))
    values[row] = value
    check(message, sources.table, save_table(tmp_path / "patients.csv", COLUMNS | {column: values}), **OPTIONS)


def test_wrong_tables(tmp_path):
    path = save_table(tmp_path / "patients.csv")
    check("no column 'label' among age, diagnosis, .*; set data.label_column", sources.table, path)
    check("no column 'x' among .*; set data.feature_columns", sources.table, path, **OPTIONS, feature_columns=("x",))
    other = COLUMNS | {"diagnosis": ["dead"] * ROWS}
    test = save_table(tmp_path / "test.csv", other)
    check("test.csv: row 0: class 'dead' is none of the 3 classes", sources.table, path, test_file=str(test), **OPTIONS)
    save_table(path, rows=slice(0))
    check("patients.csv: 0 rows of 2 features, expected at least one", sources.table, path, **OPTIONS)
    path.write_text("a,a,label\n1,2,0\n")
    check("patients.csv: more than one column 'a'", sources.table, path)
    null = save_table(tmp_path / "null.parquet", {"f": [1.0, None], "label": [0, 1]})
    check("null.parquet: row 1 has None in 'f', expected a number", sources.table, null)
    dated = save_table(tmp_path / "dated.parquet", {"label": [0, 1], "day": np.array([0, 1], "datetime64[D]")})
    check("dated.parquet: row 0 has .* in 'day', expected a number", sources.table, dated)
