"""Labels of a federation: which are classes, and one line about those that have no class, before training."""

import numpy as np
import pytest
from conftest import one_line

from fedjax_collapse import Federation, sources
from fedjax_collapse.data.store import StoreWriter


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
        (
            dict(labels=columns[:, :2], class_names=names),
            r"train labels: shape \(6, 2\) from 0 to 1, expected .* of the 3",
        ),
        (
            dict(labels=labels[:, None], class_names=names),
            r"train labels: shape \(6, 1\) from 0 to 2, expected integers",
        ),
        (dict(labels=columns, test_labels=-columns, class_names=names), "test labels: .* from -1 to 0, expected"),
        (dict(labels=columns - 1, class_names=names, pad=0), "train data: label -1 has no name among 3 class names"),
        (dict(labels=columns, test_labels=columns[:, :2]), r"have shapes \[3\] for training, \[2\] for the test"),
        (dict(labels=np.where(labels > 1, np.nan, labels)), "train labels: NaN or infinity among the values"),
        (dict(test_labels=np.where(labels > 1, np.inf, labels)), "test labels: NaN or infinity among the values"),
    ):
        with one_line(message):
            make(**change)


def test_labels_of_a_source_made_by_hand():
    inputs, labels, images = np.eye(6, 4), np.arange(6) % 3, np.zeros((6, 2, 2, 1), np.uint8)
    images[0] = 1
    source = sources.Source(images, labels, images, labels, 0.0, 1.0, ("a", "b", "c"))
    parts = [[0, 1, 2], [3, 4, 5]]
    lists = source._replace(images=images.tolist(), labels=labels.tolist())
    assert Federation.from_source(lists, parts).num_classes == 3
    several = dict(images=inputs, test_images=inputs, labels=np.eye(6, 3), task="multi_label")
    for change, message in (
        (dict(labels=labels + 1), "train data: label 3 has no name among 3 class names"),
        (dict(test_labels=labels + 1), "test data: label 3 has no name"),
        (dict(test_labels=labels - 1), "test labels: expected at least one integer >= 0"),
        (dict(images=inputs, test_images=np.where(inputs, np.nan, 0)), "test inputs: NaN or infinity"),
        (several | dict(test_labels=np.eye(6, 2)), r"test labels: shape \(6, 2\) from 0 to 1, expected .* of the 3"),
    ):
        with one_line(message):
            Federation.from_source(source._replace(**change), parts)


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("next_word", [[1, 3]], "client 'a' data: label 3 has no name among 3 class names"),
        ("next_word", [[-1, 2]], "client 'a' data: label -1 has no name"),
        ("multi_label", [[0, 1]], r"client 'a' labels: shape \(1, 2\) from 0 to 1, expected .* of the 3 class names"),
    ],
)
def test_labels_of_a_store(tmp_path, task, labels, message):
    with one_line(message), StoreWriter(tmp_path / "s", ("a", "b", "c"), task=task) as store:
        store.add("a", np.ones((1, 2), int), np.array(labels))
