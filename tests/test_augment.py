"""Augmentations op by op against Pillow and SciPy, the policy against a loop over images, crops against slices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

from fedjax_collapse import UserError
from fedjax_collapse.data import augment, auto_augment, pixels
from fedjax_collapse.data.glyphs import render

HEIGHT, WIDTH = 24, 20


@pytest.fixture(scope="module")
def images():
    """A drawn character, smooth colours, noise, two grey levels, and one colour: [5, 24, 20, 3] uint8."""
    rng = np.random.default_rng(0)
    drawn = render(np.array([7]), "coloured", HEIGHT, 3, rng)[0, :, 2 : 2 + WIDTH]
    smooth = 20 + 6 * np.add.outer(np.arange(HEIGHT), np.arange(WIDTH))[..., None] * np.array([0.3, 0.6, 0.8])
    noise = rng.integers(0, 256, (HEIGHT, WIDTH, 3))
    levels = np.where(rng.random((HEIGHT, WIDTH, 1)) < 0.7, 30, [40, 90, 200])
    plain = np.full((HEIGHT, WIDTH, 3), [10, 128, 255])
    return np.stack([drawn, smooth, noise, levels, plain]).astype(np.uint8)


@functools.cache
def mapped(augmentation):
    """Over images and keys, compiled; implicit broadcasting is an error."""

    def call(images, keys):
        with jax.numpy_rank_promotion("raise"):
            return jax.vmap(augmentation)(images.astype(jnp.float32), keys)

    return jax.jit(call)


@functools.cache
def mapped_operation():
    def call(images, operation, magnitude):
        with jax.numpy_rank_promotion("raise"):
            apply = functools.partial(auto_augment.apply_operation, operation=operation, magnitude=magnitude)
            return jax.vmap(apply)(images.astype(jnp.float32))

    return jax.jit(call)


@functools.cache
def compiled_draw():
    return jax.jit(jax.vmap(auto_augment.draw))


def drawn(keys):
    """Operation, applied and magnitude of every key."""
    return [np.asarray(part) for part in compiled_draw()(keys)]


def reference_operation(image, name, magnitude):
    """One operation on a uint8 array by Pillow, or by SciPy on (row, column) around half the side plus 0.5."""
    picture = Image.fromarray(image)
    angle = np.deg2rad(magnitude)
    matrices = {
        "ShearX": [[1, magnitude], [0, 1]],
        "ShearY": [[1, 0], [magnitude, 1]],
        "Rotate": [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]],
        "TranslateX": np.eye(2),
        "TranslateY": np.eye(2),
    }
    if name in matrices:
        shift = {"TranslateX": [0, WIDTH * magnitude], "TranslateY": [HEIGHT * magnitude, 0]}.get(name, [0, 0])
        middle = np.array([HEIGHT, WIDTH]) / 2 + 0.5
        offset = middle - np.array(matrices[name]) @ middle + shift
        channels = [ndimage.affine_transform(image[..., c], np.array(matrices[name]), offset) for c in range(3)]
        return np.stack(channels, axis=-1)
    return np.asarray(
        {
            "Invert": lambda: ImageOps.invert(picture),
            "Solarize": lambda: ImageOps.solarize(picture, magnitude),
            "Posterize": lambda: ImageOps.posterize(picture, round(magnitude)),
            "AutoContrast": lambda: ImageOps.autocontrast(picture),
            "Equalize": lambda: ImageOps.equalize(picture),
            "Brightness": lambda: ImageEnhance.Brightness(picture).enhance(magnitude),
            "Contrast": lambda: ImageEnhance.Contrast(picture).enhance(magnitude),
            "Color": lambda: ImageEnhance.Color(picture).enhance(magnitude),
            "Sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(magnitude),
        }[name]()
    )


@pytest.mark.parametrize("name", auto_augment.NAMES)
def test_every_operation_agrees_with_pillow_or_scipy(images, name):
    low, high = auto_augment.RANGES[name]
    for magnitude in low + (high - low) * np.array([0.03, 0.37, 0.61, 0.98]):
        ours = np.asarray(mapped_operation()(images, auto_augment.NAMES.index(name), np.float32(magnitude)))
        theirs = np.stack([reference_operation(image, name, float(np.float32(magnitude))) for image in images])
        difference = np.abs(ours - theirs)
        assert ours.dtype == np.float32 and np.all(ours == np.rint(ours))
        # a value on the edge between two grey levels may fall to either side
        assert difference.max() <= 1 and (difference > 0).mean() < 0.002, (difference.max(), (difference > 0).mean())


def test_the_policy_is_the_table():
    assert len(auto_augment.POLICY) == 25 and {len(pair) for pair in auto_augment.POLICY} == {2}
    assert auto_augment.POLICY[0] == (("Invert", 0.1, 7), ("Contrast", 0.2, 6))
    assert auto_augment.POLICY[3] == (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))
    assert auto_augment.POLICY[14] == (("Solarize", 0.5, 2), ("Invert", 0.0, 3))
    assert auto_augment.POLICY[24] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1))
    sums = [sum(getattr(o, field) for pair in auto_augment.POLICY for o in pair) for field in ("probability", "level")]
    assert sums == [pytest.approx(26.5), 267]


def test_draws_follow_the_probabilities_and_levels():
    """Magnitudes in the level's eleventh, sub-policies and applications as frequent as they should be."""
    operation, applied, magnitude = drawn(jax.random.split(jax.random.key(0), 20_000))
    for name, level, low, high in (
        ("Rotate", 2, -18, -12),
        ("Posterize", 7, 6.8, 7.2),
        ("Contrast", 6.5, 1.18, 1.54),
    ):
        magnitudes = magnitude[operation == auto_augment.NAMES.index(name)]
        assert low <= magnitudes.min() < magnitudes.max() <= high
        assert np.ptp(magnitudes) > 0.95 * (high - low), level
    rates = [(applied & (operation == index)).sum() / len(operation) for index in range(len(auto_augment.NAMES))]
    expected = [
        sum(o.probability for pair in auto_augment.POLICY for o in pair if o.name == name) / 25
        for name in auto_augment.NAMES
    ]
    np.testing.assert_allclose(rates, expected, atol=0.01)


def test_the_policy_agrees_with_a_loop_over_images(images):
    keys = jax.random.split(jax.random.key(1), 40)
    batch = images[np.arange(40) % len(images)]
    ours = np.asarray(mapped(augment.auto_augment)(batch, keys))
    changed = 0
    for image, result, operations, applied, magnitudes in zip(batch, ours, *drawn(keys), strict=True):
        expected = image
        for operation, magnitude in zip(operations[applied], magnitudes[applied], strict=True):
            expected = reference_operation(expected, auto_augment.NAMES[operation], float(magnitude))
        changed += not np.array_equal(expected, image)
        assert (np.abs(result - expected) > 2).mean() < 0.005
    assert 10 < changed < 40


@pytest.mark.parametrize("mode", augment.PADDINGS)
def test_crop_is_a_slice_of_the_padded_image(images, mode):
    keys = jax.random.split(jax.random.key(0), 60)
    batch = np.repeat(images[:1], 60, axis=0)
    padded = np.pad(images[0], ((4, 4), (4, 4), (0, 0)), mode)
    slices = {padded[y : y + HEIGHT, x : x + WIDTH].tobytes(): (y, x) for y in range(9) for x in range(9)}
    crops = np.asarray(mapped(functools.partial(augment.crop, mode=mode))(batch, keys)).astype(np.uint8)
    places = np.array([slices[crop.tobytes()] for crop in crops])
    assert set(places[:, 0]) == set(places[:, 1]) == set(range(9))


def test_flip_and_cutout(images):
    keys = jax.random.split(jax.random.key(0), 60)
    batch = np.repeat(images[2:3], 60, axis=0)
    flipped = np.asarray(mapped(augment.flip)(batch, keys))
    mirrored = np.all(flipped == images[2][:, ::-1], axis=(1, 2, 3))
    assert np.all(mirrored | np.all(flipped == images[2], axis=(1, 2, 3))) and 15 < mirrored.sum() < 45
    upside_down = np.asarray(mapped(functools.partial(augment.flip, axis=0))(batch, keys))
    assert np.all(upside_down[mirrored] == images[2][::-1])  # the same keys
    cut = np.asarray(mapped(functools.partial(augment.cutout, size=8))(batch + 1 - batch // 255, keys))
    holes = np.all(cut == 0, axis=-1)
    assert np.all((cut == batch + 1 - batch // 255) | holes[..., None])
    heights, widths = holes.any(axis=2).sum(axis=1), holes.any(axis=1).sum(axis=1)
    np.testing.assert_array_equal(heights * widths, holes.sum(axis=(1, 2)))  # rectangles
    assert heights.min() >= 4 and heights.max() == widths.max() == 8  # half of it at the border


def test_rotation_agrees_with_pillow(images):
    warp = jax.jit(pixels.warp_nearest)
    for degrees in (-27.3, 8.9, 15.0):
        matrix = pixels.rotation(jnp.float32(degrees))
        for image in images[:3]:
            ours = np.asarray(warp(jnp.asarray(image, jnp.float32), matrix))
            theirs = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST))
            assert np.any(ours != theirs, axis=-1).mean() < 0.01  # a place on the edge between two pixels
    keys = jax.random.split(jax.random.key(0), 200)
    marked = np.zeros((200, HEIGHT, HEIGHT, 1), np.uint8)
    marked[:, 12, 22] = 255  # to the right of the middle
    turned = np.asarray(mapped(functools.partial(augment.rotate, degrees=30.0))(marked, keys))
    rows = np.nonzero(turned)[1]
    assert rows.min() in (6, 7) and rows.max() in (17, 18)  # 10.5 pixels * sin(30 degrees) above and below
    larger = np.asarray(mapped(functools.partial(augment.rotate, degrees=0.0, scale=0.5))(marked, keys))
    columns = np.nonzero(larger)[2]
    assert columns.min() >= 17 and columns.max() == HEIGHT - 1  # 10.5 pixels from the middle, times 0.5 to 1.5


def test_jitter_is_three_factors_in_any_order(images):
    keys = jax.random.split(jax.random.key(0), 12)
    only = functools.partial(augment.jitter, brightness=0.4)
    for result, key in zip(np.asarray(mapped(only)(np.repeat(images[:1], 12, 0), keys)), keys, strict=True):
        factor = float(jax.random.uniform(jax.random.split(key)[1], (3,), minval=0.6, maxval=1.4)[0])
        np.testing.assert_allclose(result, reference_operation(images[0], "Brightness", factor), atol=1)
    everything = functools.partial(augment.jitter, brightness=0.4, contrast=0.4, saturation=0.4)
    results = np.asarray(mapped(everything)(np.repeat(images[:1], 12, 0), keys))
    assert len({result.tobytes() for result in results}) == 12
    np.testing.assert_array_equal(np.asarray(mapped(augment.jitter)(images, keys[:5])), images)


def test_a_chain_applies_all_in_order_each_with_its_own_key():
    seen = []
    plus_one = lambda image, key: (seen.append(jax.random.key_data(key).tolist()), image + 1)[1]  # noqa: E731
    assert augment.chain(plus_one, lambda image, key: 2 * image, plus_one)(3, jax.random.key(0)) == 9
    assert seen[0] != seen[1]


def test_every_preset_keeps_shape_and_range(images):
    keys = jax.random.split(jax.random.key(0), len(images))
    shapes = (jax.ShapeDtypeStruct((32, 28, 1), jnp.float32), jax.eval_shape(lambda: jax.random.key(0)))
    for name in augment.PRESETS:
        assert jax.eval_shape(augment.preset(name), *shapes) == shapes[0], name
    result = np.asarray(mapped(augment.preset("fedmr_cifar100"))(images, keys))
    assert result.min() >= 0 and result.max() <= 255 and np.all(result == np.rint(result))
    assert not np.array_equal(result, images)
    assert augment.preset("none")(images, None) is images


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: augment.preset("cifar"), "augmentation 'cifar': expected one of none, feddecorr_cifar10"),
        (lambda: augment.crop(jnp.zeros((8, 8, 1)), None, mode="zero"), "crop mode 'zero': expected one of constant"),
    ],
)
def test_wrong_names_are_explained(call, message):
    with pytest.raises(UserError, match=message):
        call()
