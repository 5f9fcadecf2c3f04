"""Synthetic characters: shapes, determinism, and that styles are shifted domains of the same learnable classes."""

import numpy as np
import pytest

from fedjax_collapse import UserError, sources
from fedjax_collapse.data.sources import glyph_images as glyphs


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(("num_classes", "size", "channels"), [(10, 28, 1), (26, 28, 1), (62, 32, 3), (100, 32, 1)])
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


@pytest.mark.parametrize(
    ("style", "means", "deviations"),
    [
        ("clean", [111.547, 128.172, 125.655], [49.932, 72.166, 77.510]),
        ("coloured", [118.202, 131.037, 128.741], [74.097, 57.755, 50.175]),
        ("outline", [140.391, 144.257, 144.481], [56.287, 58.517, 58.132]),
        ("textured", [105.632, 112.174, 104.026], [55.433, 52.859, 29.798]),
    ],
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_classes=11), "num_classes 11: expected one of 10, 26, 62, 100"),
        (dict(channels=2), "channels 2: expected one of 1, 3"),
        (dict(domains=("clear",)), "unknown domain 'clear', expected one of clean"),
        (dict(domains=()), r"domains \(\): expected at least one"),
        (dict(train_size=0), "train_size 0 is too small"),
        (dict(image_size=4), "image_size 4 is outside"),
    ],
)
def test_wrong_requests_are_explained(arguments, message):
    with pytest.raises(UserError, match=message):
        sources.glyphs(**{"train_size": 10, "test_size": 10, **arguments})
