"""Natural clients from tables, and their partitions: the owners and names that a data set has, back from its files."""

import itertools

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import cases, check
from small_data import assert_fields, draw, encode, save_arrow, save_image, save_parquet

from experiments.configs import base
from fedjax_collapse import partition, sources
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain

pytestmark = pytest.mark.usefixtures("own_cache")


def femnist(file, count=30):
    """Images, labels and writers in a Parquet file with the columns of flwrlabs/femnist."""
    images, labels = draw(count, (8, 8))
    writers = np.array(["f10", "f2", "a7"])[np.arange(count) % 7 % 3]  # in no order
    save_parquet(file, images, labels, "0123", label="character", writer_id=writers, hsf_id=[0] * count)
    return images, labels, writers


def assert_owned(images, owners, names, stored, clients):
    """Every image is one of its owner's, and no other is missing."""
    found = sorted((image.tobytes(), names[owner]) for image, owner in zip(images, owners, strict=True))
    assert found == sorted((image.tobytes(), str(client)) for image, client in zip(stored, clients, strict=True))


def test_a_column_of_clients_without_a_test_part(tmp_path):
    """FEMNIST as published: one split, of which a part of each writer's examples is held out, by the seed."""
    images, _, writers = femnist(tmp_path / "data" / "train-00000-of-00001.parquet")
    options = dict(client_column="writer_id", channels=1, test_fraction=0.25)
    source = sources.parquet(tmp_path / "data", **options)
    assert_fields(source, client_names=("a7", "f10", "f2"), class_names=tuple("0123"))
    pool = source.pooled()
    assert_owned(pool.images[..., 0], pool.owners, source.client_names, images, writers)
    sizes = np.bincount(pool.owners)
    np.testing.assert_array_equal(np.bincount(source.test_owners), sizes // 4)
    assert_fields(sources.parquet(tmp_path / "data", **options), **source._asdict())  # from the cache
    assert not np.array_equal(sources.parquet(tmp_path / "data", **options, seed=1).images, source.images)


@cases("stream", "file")
def test_arrow_folders_with_truth_values_and_numbers_as_clients(form, tmp_path):
    """CelebA as published, saved by ``save_to_disk``; clients without training examples are the last ones."""
    images, labels = draw(12, (8, 8, 3))
    people = {"train": np.array([30, 4, 4, 30, 30, 4]), "test": np.array([4, 2, 30, 2, 100, 4])}
    for part, rows in (("train", slice(0, 6)), ("test", slice(6, 12))):
        columns = {"image": [{"bytes": encode(image), "path": None} for image in images[rows]]}
        table = pyarrow.table(columns | {"celeb_id": people[part], "Smiling": labels[rows] % 2 == 1})
        name = f"{part}/data-00000-of-00001.arrow" if form == "stream" else f"celeba-{part}.arrow"
        save_arrow(file := tmp_path / "data" / name, table, form)
    options = dict(label_column="Smiling", client_column="celeb_id")
    source = sources.arrow(tmp_path / "data", **options)
    assert_fields(source, client_names=("4", "30", "2", "100"), labels=labels[:6] % 2, images=images[:6])
    assert_fields(source, owners=[1, 0, 0, 1, 1, 0], test_owners=[0, 2, 1, 2, 3, 0])
    content = file.read_bytes()
    for damaged in (b"", b"ARROW1", content[: len(content) // 2]):
        file.write_bytes(damaged)
        check(rf"{file.name}: cannot be read as Arrow \(", sources.arrow, tmp_path / "data", **options)


def test_wrong_columns_of_clients(tmp_path):
    file = tmp_path / "data" / "train.parquet"
    femnist(file)
    message = "no column 'user' among image, character, writer_id, hsf_id; set data.client_column"
    check(message, sources.parquet, file.parent, client_column="user")
    table = pyarrow.parquet.read_table(file)
    several = table.append_column("labels", [[["animal", "plant"]] * len(table)])  # as in FLAIR
    pyarrow.parquet.write_table(several, file)
    message = "train.parquet: row 0 has a list in 'labels', expected one class; set data.label_column"
    check(message, sources.parquet, file.parent, client_column="writer_id", label_column="labels")
    for value in (None, 0.5):
        wrong = table.drop_columns("hsf_id").append_column("hsf_id", [[value] * len(table)])
        pyarrow.parquet.write_table(wrong, file)
        check(f"row 0 has client {value}, expected a name or", sources.parquet, file.parent, client_column="hsf_id")
        message = f"row 0 has {value} in 'hsf_id'; expected an integer"
        check(message, sources.parquet, file.parent, client_column="writer_id", coarse_column="hsf_id")


def test_a_federation_of_all_or_of_drawn_clients(tmp_path):
    """Each client has its own examples, tests and name, also where another seed draws others."""
    _, labels, writers = femnist(tmp_path / "data" / "train.parquet", count=40)
    data = dict(source=f"parquet:{tmp_path / 'data'}", client_column="writer_id", channels=1)
    for clients, own_tests in itertools.product((3, 2), ("given", "split", "shares")):
        changes = dict(clients=clients, partition=dict(name="given", draw=clients < 3), own_tests=dict(name=own_tests))
        made = build.federations(plain(base.get_config()) | dict(data=data) | changes, range(3)).values()
        names = {federation.client_names for federation in made}
        assert names == {("a7", "f10", "f2")} if clients == 3 else len(names) == 2
        for federation, client in itertools.product(made, range(clients)):
            counts = federation.class_counts()[client]
            existing = np.bincount(labels[writers == federation.client_names[client]], minlength=4)
            if federation.tests is not None:
                tested = np.asarray(federation.test.labels)[federation.tests.rows[client]]
                counts = counts + np.bincount(tested[: federation.tests.sizes[client]], minlength=4)
                np.testing.assert_array_equal(counts, existing)
            assert counts.sum() > 0 and np.all(counts <= existing)


OWNERS = np.repeat(np.arange(5), (1, 4, 2, 7, 3))


def test_clients_with_few_examples_are_left_out():
    labels = np.zeros(len(OWNERS), int)
    parts = partition.given(labels, 3, OWNERS, min_size=3)
    assert [np.unique(OWNERS[part]).tolist() for part in parts] == [[1], [3], [4]]
    drawn = [partition.given(labels, 2, OWNERS, seed=seed, min_size=3, draw=True) for seed in range(30)]
    owners = {tuple(int(OWNERS[part[0]]) for part in parts) for parts in drawn}
    assert owners == {(1, 3), (1, 4), (3, 4)}
    message = r"5 clients but 3 in the data with at least 3 examples; use clients=3$"
    check(message, partition.given, labels, 5, OWNERS, min_size=3, draw=True)


def test_groups_of_natural_clients():
    """At small alpha a person is at one client or few, at large alpha at all."""
    owners = np.random.default_rng(0).permutation(np.arange(2000) % 40)
    clients = {}
    for alpha in (0.01, 100.0):
        parts = partition.dirichlet_of_owners(np.zeros(2000, int), 4, owners, alpha)
        assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
        clients[alpha] = np.mean([sum(owner in owners[part] for part in parts) for owner in range(40)])
    assert clients[0.01] < 1.5 and clients[100.0] > 3.9


def test_pachinko():
    """TFF's CIFAR-100 in small: sizes, no row twice, few coarse classes, most of the classes below them."""
    labels = np.random.default_rng(0).permutation(np.arange(4000) % 100)
    coarse = labels % 20 + 3
    parts = partition.pachinko(labels, 40, coarse, seed=1)
    assert {len(part) for part in parts} == {100} and sorted(np.concatenate(parts).tolist()) == list(range(4000))
    early = parts[:10]  # later ones take what is left
    assert np.mean([len(np.unique(coarse[part])) for part in early]) < 8
    above = [np.bincount(coarse[part]).argmax() for part in early]
    assert np.mean([len(np.unique(labels[p][coarse[p] == c])) for p, c in zip(early, above, strict=True)]) == 5
    concentrated = partition.pachinko(labels, 10, coarse, fine_alpha=0.01, size=20, seed=1)
    assert sum(map(len, concentrated)) == 200
    above = [np.bincount(coarse[part]).argmax() for part in concentrated]
    below = [len(np.unique(labels[p][coarse[p] == c])) for p, c in zip(concentrated, above, strict=True)]
    assert np.mean(below) < 2
    even = partition.pachinko(labels, 2, coarse, alpha=1e4, fine_alpha=1e4, size=1000)
    shares = np.bincount(labels[even[0]]) / 1000
    assert abs(shares - 0.01).max() < 0.02
    for wrong, options, message in (
        (coarse[:9], {}, "4000 examples need as many coarse labels, integers from 0, got 9"),
        (np.arange(4000) % 7, {}, "class 0 is below several coarse classes, such as 0, 1; expected one"),
        (coarse, dict(size=101), "40 clients with at least 101 examples each need 4040, but there are 4000"),
    ):
        check(message, partition.pachinko, labels, 40, wrong, **options)


def landmarks(root, lines, test=()):
    """Google Landmarks as published: csv files, and images in folders by the first letters of their names."""
    root.mkdir(exist_ok=True)
    for name, columns, rows in (("train", "user_id,image_id,class", lines), ("test", "image_id,class", test)):
        (root / f"{name}.csv").write_text("\n".join([columns, *rows]) + "\n")
    return root / "train.csv"


def test_csv_with_files(tmp_path):
    images, _ = draw(6, (6, 6, 3))
    names = ["abc1", "abd2", "b03", "b14", "c.5", "d6"]
    for name, image in zip(names, images, strict=True):
        save_image(tmp_path / "images" / name[0] / name[1] / f"{name}.png", image)
    lines = ["10,abc1,0", "9,abd2.png,2", "10,b/0/b03,1", "9,b/1/b14.png,1"]
    file = landmarks(tmp_path / "data", lines, ["c.5,2", "d6,0"])
    options = dict(image_folder=tmp_path / "images")
    source = sources.csv(file, test_file=file.with_name("test.csv"), **options)
    assert_fields(source, images=images[:4], test_images=images[4:], labels=[0, 2, 1, 1], test_labels=[2, 0])
    assert_fields(source, client_names=("10", "9"), owners=[0, 1, 0, 1], test_owners=None)
    assert source.pooled().owners is None
    save_image(tmp_path / "data" / "abc1.png", images[0])
    landmarks(tmp_path / "data", ["a,abc1,cat"] * 3 + ["b,abc1,ant"] * 4)
    source = sources.csv(file, test_fraction=0.5)  # images beside it
    tabbed = file.with_suffix(".tsv")  # with a byte-order mark, as spreadsheets write it
    tabbed.write_text(file.read_text().replace(",", "\t"), encoding="utf-8-sig")
    assert_fields(sources.csv(tabbed, test_fraction=0.5), **source._asdict())
    assert_fields(source, class_names=("ant", "cat"))
    assert [np.bincount(part).tolist() for part in (source.owners, source.test_owners)] == [[2, 2], [1, 2]]


def test_wrong_csv_files(tmp_path):
    file, folder = landmarks(tmp_path / "data", ["1,a,0"], ["a,1"]), str(tmp_path / "data")
    save_image(tmp_path / "data" / "a.png", draw(1, (6, 6, 3))[0][0])
    check("none.csv: cannot be read as csv .No such file", sources.csv, tmp_path / "none.csv", image_folder=folder)
    check("train.csv: no column 'user' among user_id, image_id, class; set", sources.csv, file, client_column="user")
    message = "test.csv, line 2: class '1' is none of the 1 classes of training"
    check(message, sources.csv, file, test_file=str(tmp_path / "data" / "test.csv"))
    for lines, message in (
        (["1,a,0", "1,b,0"], "train.csv, line 3: there is no image in .*data for 'b'; correct data.image_folder"),
        (["1,a"], "train.csv, line 2: expected 3 values, none of image_id, class, user_id empty"),
        (["1,a, "], "train.csv, line 2: the label is empty, expected a class"),
        (["1,a,7"], "training labels are 7 to 7 for 1 examples"),
        (["1,a,0"], "train.csv: it has no test part, and test_fraction 0.2 of each client's examples is none"),
        (['1,"a,0'], "train.csv: cannot be read as csv .unexpected end of data"),
    ):
        landmarks(tmp_path / "data", lines)
        check(message, sources.csv, file)
    file.write_text("user_id,image_id,class,class\n1,a,0,1\n")
    check("train.csv: more than one column 'class'; rename or remove", sources.csv, file)
    file.write_bytes(b"user_id,image_id,class\n1,\xff,0\n")
    check("train.csv: cannot be read as csv .*invalid start byte", sources.csv, file)
    landmarks(tmp_path / "data", ["1,a,0"])
    save_image(tmp_path / "data" / "more" / "a.png", draw(1, (6, 6, 3))[0][0])
    check("line 2: .*a.png and .*a.png both are image 'a'; correct data.image_folder", sources.csv, file)
