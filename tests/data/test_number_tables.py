"""Tables of numbers: features, classes and clients of every kind of file, and wrong values in one line."""

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest
from small_data import check

from fedjax_collapse import Federation, sources

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


def save(file, columns=COLUMNS, rows=slice(None)):
    """The table in the kind of file that its name says."""
    lists = {name: np.asarray(values)[rows].tolist() for name, values in columns.items()}
    table = pyarrow.table(lists)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    elif file.suffix == ".arrow":
        with pyarrow.ipc.new_file(file, table.schema) as written:
            written.write_table(table)
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(str(row).replace("'", '"') for row in table.to_pylist()))
    else:
        between = "\t" if file.suffix == ".tsv" else ","
        lines = [between.join(map(str, row)) for row in zip(*lists.values(), strict=True)]
        file.write_text("\n".join([between.join(lists), *lines]) + "\n")
    return file


def as_rows(features, labels, *more):
    return sorted(zip(map(tuple, features.tolist()), labels, *more, strict=True))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_every_kind_of_file(tmp_path, suffix):
    source = sources.table(save(tmp_path / f"patients.{suffix}"), **OPTIONS, test_fraction=0.34)
    assert source.images.dtype == np.float32 and source.mean is None
    assert source.class_names == ("ill", "unknown", "well") and source.client_names == ("H0", "H1", "H2", "H3")
    pool = source.pooled()
    names = [source.class_names[label] for label in pool.labels]
    clients = [source.client_names[owner] for owner in pool.owners]
    assert as_rows(pool.images, names, clients) == as_rows(FEATURES, COLUMNS["diagnosis"], COLUMNS["hospital"])
    assert np.bincount(source.test_owners).tolist() == [2] * 4
    federation = Federation.from_source(source, [np.arange(8), np.arange(8, 16)])
    assert federation.input_shape == (2,) and federation.num_classes == 3


def test_parts_in_files_and_in_folders(tmp_path):
    train, test = (
        save(tmp_path / f"{part}.csv", rows=rows) for part, rows in (("train", slice(16)), ("test", slice(16, 24)))
    )
    by_file = sources.table(train, test_file=test, **OPTIONS)
    by_folder = sources.table(tmp_path, **OPTIONS)
    for source in (by_file, by_folder):
        expected = FEATURES[:16], COLUMNS["diagnosis"][:16]
        assert as_rows(source.images, [source.class_names[label] for label in source.labels]) == as_rows(*expected)
        assert as_rows(source.test_images, source.test_owners) == as_rows(FEATURES[16:], [*range(4)] * 2)
    message = "it has a test part, test.csv; leave out data.test_file"
    check(message, sources.table, tmp_path, test_file=str(test), **OPTIONS)
    save(test, {name: values for name, values in COLUMNS.items() if name != "hospital"}, slice(16, 24))
    assert sources.table(tmp_path, **OPTIONS).test_owners is None


def test_features_are_chosen_and_standardised_by_training(tmp_path):
    constant = COLUMNS | {"constant": [7] * ROWS}
    save(tmp_path / "train.parquet", constant, slice(16))
    save(tmp_path / "test.parquet", {name: constant[name] for name in [*constant][::-1]}, slice(16, 24))
    source = sources.table(tmp_path, **OPTIONS, standardised=True)
    columns = np.stack([COLUMNS["age"], COLUMNS["pressure"], [7] * ROWS], 1)
    np.testing.assert_allclose(source.mean, columns[:16].mean(0), rtol=1e-6)
    np.testing.assert_allclose(source.std, [*columns[:16, :2].std(0), 1], rtol=1e-6)
    assert as_rows(source.test_images, source.test_owners) == as_rows(columns[16:].astype(np.float32), [*range(4)] * 2)
    chosen = sources.table(tmp_path, **OPTIONS, feature_columns=("pressure", "age"))
    assert as_rows(chosen.images, chosen.owners) == as_rows(FEATURES[:16, ::-1], [*range(4)] * 4)


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("age", 5, "old", "patients.csv: row 5 has 'old' in 'age', expected a number of 32 bits; correct it, or"),
        ("pressure", 0, "nan", "row 0 has 'nan' in 'pressure', expected a number"),
        ("pressure", 0, "1e300", "row 0 has '1e300' in 'pressure', expected a number of 32 bits"),
        ("diagnosis", 3, "", "patients.csv: row 3: the label is empty, expected a class"),
        ("hospital", 2, "", "patients.csv: row 2 has client '', expected a name or a number"),
    ],
)
def test_wrong_values_are_named(tmp_path, column, row, value, message):
    values = list(map(str, COLUMNS[column]))
    values[row] = value
    check(message, sources.table, save(tmp_path / "patients.csv", COLUMNS | {column: values}), **OPTIONS)


def test_wrong_tables(tmp_path):
    path = save(tmp_path / "patients.csv")
    check("no column 'label' among age, diagnosis, .*; set data.label_column", sources.table, path)
    check("no column 'x' among .*; set data.feature_columns", sources.table, path, **OPTIONS, feature_columns=("x",))
    check("row 0 has 'H0' in 'hospital', expected a number", sources.table, path, label_column="diagnosis")
    other = COLUMNS | {"diagnosis": ["dead"] * ROWS}
    test = save(tmp_path / "test.csv", other)
    check("test.csv: row 0: class 'dead' is none of the 3 classes", sources.table, path, test_file=str(test), **OPTIONS)
    save(path, rows=slice(0))
    check("patients.csv: 0 rows of 2 features, expected at least one", sources.table, path, **OPTIONS)
    path.write_text("a,a,label\n1,2,0\n")
    check("patients.csv: more than one column 'a'", sources.table, path)
    null = save(tmp_path / "null.parquet", {"f": [1.0, None], "label": [0, 1]})
    check("null.parquet: row 1 has None in 'f', expected a number", sources.table, null)
    dated = tmp_path / "dated.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"label": [0, 1], "day": pyarrow.array([0, 1], pyarrow.date32())}), dated)
    check("dated.parquet: row 0 has .* in 'day', expected a number", sources.table, dated)
