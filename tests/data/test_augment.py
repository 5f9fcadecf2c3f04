"""Augmentations op by op against Pillow and SciPy, the policy against a loop over images, crops against slices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check
from PIL import Image
from reference.images import FACTORS, reference_operation, torchvision_magnitudes

from fedjax_collapse.data import augment
from fedjax_collapse.data.augment import pixels, policy
from fedjax_collapse.data.sources.glyph_images import render

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
def mapped_operation(rule):
    def call(images, operation, magnitude):
        with jax.numpy_rank_promotion("raise"):
            drawn = policy.Draw(operation, jnp.array(True), magnitude)
            return jax.vmap(lambda image: policy.apply_drawn(image, drawn, rule))(images.astype(jnp.float32))

    return jax.jit(call)


def drawn(keys, rule="feddecorr"):
    """Operation, applied and magnitude of every key."""
    return [np.asarray(part) for part in jax.jit(jax.vmap(functools.partial(policy.draw, rule=rule)))(keys)]


@pytest.mark.parametrize("rule", policy.RULES)
@pytest.mark.parametrize("name", policy.NAMES)
def test_every_operation_agrees_with_pillow_or_scipy(images, name, rule):
    """Between the ends of its range, or at all of torchvision's levels."""
    magnitudes, most, share = np.interp([0.03, 0.37, 0.61, 0.98], [0, 1], policy.RANGES[name]), 1, 0.002
    if rule == "torchvision":
        magnitudes = [policy.RULES[rule].bounds(policy.Operation(name, 1.0, level)) for level in range(10)]
        np.testing.assert_allclose(magnitudes, torchvision_magnitudes(name), rtol=1e-6, atol=1e-6)
        most, share = 255 if name == "Rotate" else 1, 0.01 if name in FACTORS else 0.002
    for magnitude in np.unique(np.float32(magnitudes)):
        ours = np.asarray(mapped_operation(rule)(images, policy.NAMES.index(name), magnitude))
        theirs = np.stack([reference_operation(image, name, float(magnitude), rule) for image in images])
        difference = np.abs(ours - theirs)
        assert ours.dtype == np.float32 and np.all(ours == np.rint(ours))
        # a value on the edge between two grey levels may fall to either side, and a pixel where two are as near
        assert difference.max() <= most and (difference > 0).mean() < share, (magnitude, difference.max())


def test_the_policy_is_the_table():
    assert len(policy.POLICY) == 25 and {len(pair) for pair in policy.POLICY} == {2}
    assert policy.POLICY[0] == (("Invert", 0.1, 7), ("Contrast", 0.2, 6))
    assert policy.POLICY[3] == (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))
    assert policy.POLICY[14] == (("Solarize", 0.5, 2), ("Invert", 0.0, 3))
    assert policy.POLICY[24] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1))
    sums = [sum(getattr(o, field) for pair in policy.POLICY for o in pair) for field in ("probability", "level")]
    assert sums == [pytest.approx(26.5), 267]


def test_draws_follow_the_probabilities_and_levels():
    """Magnitudes in the level's eleventh, sub-policies and applications as frequent as they should be.

    Torchvision's are the same operations, with magnitudes in either direction.
    """
    keys = jax.random.split(jax.random.key(0), 20_000)
    operation, applied, magnitude = drawn(keys)
    for name, level, low, high in (("Rotate", 2, -18, -12), ("Posterize", 7, 6.8, 7.2), ("Contrast", 6.5, 1.18, 1.54)):
        magnitudes = magnitude[operation == policy.NAMES.index(name)]
        assert low <= magnitudes.min() < magnitudes.max() <= high
        assert np.ptp(magnitudes) > 0.95 * (high - low), level
    rates = [(applied & (operation == index)).sum() / len(operation) for index in range(len(policy.NAMES))]
    expected = [
        sum(o.probability for pair in policy.POLICY for o in pair if o.name == name) / 25 for name in policy.NAMES
    ]
    np.testing.assert_allclose(rates, expected, atol=0.01)
    *same, magnitude = drawn(keys, "torchvision")
    np.testing.assert_array_equal(same, (operation, applied))
    for name, values in (("Rotate", (-60 / 9, 60 / 9)), ("TranslateX", np.outer([-1, 1], [8, 9]) * 150 / 331 / 9)):
        found, counts = np.unique(magnitude[operation == policy.NAMES.index(name)], return_counts=True)
        np.testing.assert_allclose(found, np.sort(np.ravel(values)), rtol=1e-6)
        np.testing.assert_allclose(counts / counts.sum(), 1 / len(found), atol=0.05)
    both = np.bincount(2 * (magnitude[:, 0] > 0) + (magnitude[:, 1] > 0), operation[:, 0] == operation[:, 1], 4)
    assert min(both) > 0  # each operation has its own sign


@pytest.mark.parametrize("rule", policy.RULES)
def test_the_policy_agrees_with_a_loop_over_images(images, rule):
    keys = jax.random.split(jax.random.key(1), 40)
    batch = images[np.arange(40) % len(images)]
    ours = np.asarray(mapped(functools.partial(augment.auto_augment, rule=rule))(batch, keys))
    changed = 0
    for image, result, operations, applied, magnitudes in zip(batch, ours, *drawn(keys, rule), strict=True):
        expected = image
        for operation, magnitude in zip(operations[applied], magnitudes[applied], strict=True):
            expected = reference_operation(expected, policy.NAMES[operation], float(magnitude), rule)
        changed += not np.array_equal(expected, image)
        assert (np.abs(result - expected) > 2).mean() < 0.005
    assert 10 < changed < 40


@cases(({}, 4, (HEIGHT, WIDTH)), (dict(mode="reflect"), 4, (HEIGHT, WIDTH)), (dict(padding=0, size=16), 0, (16, 16)))
def test_crops_are_all_slices_of_the_padded_image(options, padding, shape, images):
    keys = jax.random.split(jax.random.key(0), 1000)
    padded = np.pad(images[2], (*[(padding, padding)] * 2, (0, 0)), options.get("mode", "constant"))
    slices = np.lib.stride_tricks.sliding_window_view(padded, shape, (0, 1)).transpose(0, 1, 3, 4, 2)
    crops = mapped(functools.partial(augment.crop, **options))(np.repeat(images[2:3], 1000, axis=0), keys)
    assert {crop.tobytes() for crop in np.uint8(crops)} == {own.tobytes() for row in slices for own in row}


def test_an_enlarged_part_agrees_with_pillow(images):
    parts = [(0, 0, HEIGHT, WIDTH), (3, 5, 10, 12), (1, 2, 23, 7), (0, 18, 1, 2)]  # top, left, height, width
    resize = jax.jit(pixels.resize)
    for top, left, height, width in parts:
        box = left, top, left + width, top + height
        for image in images:
            expected = Image.fromarray(image).crop(box).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
            found = resize(jnp.asarray(image, jnp.float32), top, left, height, width)
            assert np.abs(np.asarray(found) - np.asarray(expected, float)).max() <= 1  # Pillow rounds weights


def drawn_as_in_torchvision(rng):
    """Height and width of a part of 32 x 32 pixels."""
    for _ in range(10):
        area, shape = 32**2 * rng.uniform(0.08, 1), np.exp(rng.uniform(-np.log(4 / 3), np.log(4 / 3)))
        width, height = round(np.sqrt(area * shape)), round(np.sqrt(area / shape))
        if 0 < width <= 32 and 0 < height <= 32:
            return height, width
    return 32, 32


def test_resized_crops_are_parts_of_the_image_of_any_size_and_shape():
    """A ramp of values shows where a part begins and ends."""
    ramp = jnp.stack(jnp.meshgrid(8.0 * jnp.arange(32), 8.0 * jnp.arange(32), indexing="ij"), axis=-1)
    keys = jax.random.split(jax.random.key(0), 4000)
    parts = mapped(augment.resized_crop)(jnp.broadcast_to(ramp, (4000, 32, 32, 2)), keys)
    height, width = np.array([parts[:, -1, 0, 0] - parts[:, 0, 0, 0], parts[:, 0, -1, 1] - parts[:, 0, 0, 1]]) / 8 + 1
    area, shape = height * width / 32**2, width / height
    rng = np.random.default_rng(0)
    rows, columns = np.array([drawn_as_in_torchvision(rng) for _ in range(4000)]).T
    at = np.linspace(0, 1, 21)
    np.testing.assert_allclose(np.quantile(area, at), np.quantile(rows * columns / 32**2, at), atol=0.03)
    np.testing.assert_allclose(np.quantile(shape, at), np.quantile(columns / rows, at), atol=0.06)
    assert parts[:, 0, 0].min() == 0 and parts[:, -1, -1].max() == 248


def test_flips(images):
    keys = jax.random.split(jax.random.key(0), 300)
    batch = np.repeat(images[2:3], 300, axis=0)
    flipped = np.asarray(mapped(augment.flip)(batch, keys))
    mirrored = np.all(flipped == images[2][:, ::-1], axis=(1, 2, 3))
    assert np.all(mirrored | np.all(flipped == images[2], axis=(1, 2, 3))) and 120 < mirrored.sum() < 180
    upside_down = np.asarray(mapped(functools.partial(augment.flip, axis=0))(batch, keys))
    assert np.all(upside_down[mirrored] == images[2][::-1])  # the same keys
    flipped = np.asarray(mapped(augment.any_flip)(batch, keys))
    kinds = [images[2][:, ::-1], images[2][::-1], images[2][::-1, ::-1]]
    counts = [np.all(flipped == kind, axis=(1, 2, 3)).sum() for kind in kinds]
    assert sum(counts) == 300 and min(counts) > 70


def test_a_reflected_rotation_agrees_with_pillow_and_numpy(images):
    warp = jax.jit(functools.partial(pixels.warp_nearest, mode="reflect"))
    for degrees in (-27.3, 8.9, 15.0):
        matrix = pixels.rotation(jnp.float32(degrees))
        for image in images[:3]:
            offset = pixels.offset_about(matrix, jnp.array([HEIGHT, WIDTH]) / 2)
            reflected = warp(jnp.asarray(image, jnp.float32), matrix, offset)
            larger = Image.fromarray(np.pad(image, ((20, 20), (20, 20), (0, 0)), "reflect"))
            theirs = np.asarray(larger.rotate(degrees, Image.Resampling.NEAREST))[20:-20, 20:-20]
            assert np.any(np.asarray(reflected) != theirs, axis=-1).mean() < 0.01  # the edge between two pixels
    keys = jax.random.split(jax.random.key(0), 200)
    marked = np.zeros((200, HEIGHT, HEIGHT, 1), np.uint8)
    marked[:, 12, 22] = 255  # to the right of the middle
    turned = np.asarray(mapped(functools.partial(augment.rotate, degrees=30.0))(marked, keys))
    rows = np.nonzero(turned)[1]
    assert rows.min() in (6, 7) and rows.max() in (17, 18)  # 10.5 pixels * sin(30 degrees) above and below


def test_hue_agrees_with_pillow(images):
    turn = jax.jit(pixels.hue)
    noise = np.random.default_rng(1).integers(0, 256, (60, 240, 3))
    colours = np.concatenate([noise, noise // 51 * 51, noise // 85 * 85, images.reshape(10, 240, 3)]).astype(np.uint8)
    for part in np.float32([-0.5, -0.31, -0.003, 0, 0.02, 0.1, 0.5]):
        ours = np.asarray(turn(jnp.asarray(colours, jnp.float32), part))
        np.testing.assert_array_equal(ours, reference_operation(colours, "Hue", part))
    np.testing.assert_array_equal(turn(colours[..., :1], 0.3), colours[..., :1])


@cases(0.0, 0.25)
def test_jitter_is_three_or_four_changes_in_any_order(hue, images):
    """Without a strength it changes nothing."""
    np.testing.assert_array_equal(
        np.asarray(mapped(augment.jitter)(images, jax.random.split(jax.random.key(0), 5))), images
    )
    keys, kinds = jax.random.split(jax.random.key(3), 20), 3 + (hue > 0)
    strengths = dict(brightness=0.2, contrast=0.3, saturation=0.4, hue=hue)
    results = np.asarray(mapped(functools.partial(augment.jitter, **strengths))(np.repeat(images[:1], 20, 0), keys))
    orders = set()
    for result, key in zip(results, keys, strict=True):
        order_key, factor_key = jax.random.split(key)
        lowest, highest = np.float32([[0.8, 0.7, 0.6, -0.25], [1.2, 1.3, 1.4, 0.25]])
        limits = dict(minval=lowest[:kinds], maxval=highest[:kinds])
        factors = np.asarray(jax.random.uniform(factor_key, (kinds,), **limits))
        order, expected = np.asarray(jax.random.permutation(order_key, kinds)), images[0]
        for kind in order:
            name = ("Brightness", "Contrast", "Color", "Hue")[kind]
            expected = reference_operation(expected, name, factors[kind])
        orders.add(tuple(order))
        assert (np.abs(result - expected) > 2).mean() < 0.01
    assert len(orders) > 4


def test_holes_brightness_and_contrast_are_those_of_albumentations():
    keys = jax.random.split(jax.random.key(0), 300)
    white = np.full((300, HEIGHT, WIDTH, 1), 255, np.uint8)
    holes = np.asarray(mapped(functools.partial(augment.coarse_dropout, max_holes=3, size=5))(white, keys)) == 0
    areas = holes.sum(axis=(1, 2, 3))
    assert areas.min() == 25 and 50 < areas.max() <= 75 and 0.2 < (areas == 25).mean() < 0.5
    assert holes[:, :1].any() and holes[:, -1:].any() and holes[:, :, -1:].any()
    lighter = functools.partial(augment.brightness_contrast, brightness=0.2, contrast=0.1)
    grey = np.tile(np.uint8([80, 180]).reshape(1, 2, 1, 1), (300, 1, 1, 1))
    low, high = np.asarray(mapped(lighter)(grey, keys))[:, :, 0, 0].T
    factor, shift = (high - low) / 100, low - 80 * (high - low) / 100
    assert 0.89 < factor.min() < 0.92 and 1.08 < factor.max() < 1.11
    assert -53 < shift.min() < -45 and 45 < shift.max() < 53


def test_magnification_is_uniform_within_its_range():
    """Widths of a white square of 20 pixels, without a rotation."""
    image = np.zeros((300, 64, 64, 1), np.uint8)
    image[:, 22:42, 22:42] = 255
    scaled = functools.partial(augment.rotate, degrees=0.0, scale=0.5)
    widths = (np.asarray(mapped(scaled)(image, jax.random.split(jax.random.key(0), 300)))[:, 32, :, 0] > 0).sum(axis=1)
    assert widths.min() in (10, 11) and widths.max() in (29, 30) and abs(widths.mean() - 20) < 1.5


def test_sometimes_is_as_often_as_its_probability(images):
    keys = jax.random.split(jax.random.key(0), 2000)
    batch = np.zeros((2000, 1, 1, 1), np.uint8)
    rare = augment.sometimes(lambda image, key: image + jax.random.uniform(key), 0.2)
    results = np.asarray(mapped(rare)(batch, keys)).ravel()
    assert 0.17 < (results > 0).mean() < 0.23
    np.testing.assert_allclose(np.mean(results[results > 0]), 0.5, atol=0.04)  # a key of its own


def test_a_chain_applies_all_in_order_each_with_its_own_key():
    seen = []
    plus_one = lambda image, key: (seen.append(jax.random.key_data(key).tolist()), image + 1)[1]  # noqa: E731
    assert augment.chain(plus_one, lambda image, key: 2 * image, plus_one)(3, jax.random.key(0)) == 9
    assert seen[0] != seen[1]


def test_every_preset_keeps_shape_and_range_but_that_of_isic(images):
    keys = jax.random.split(jax.random.key(0), len(images))
    shapes = {name: augment.output_shape(augment.preset(name), (224, 220, 1)) for name in augment.PRESETS}
    assert shapes.pop("flamby_isic2019") == (200, 200, 1)
    assert set(shapes.values()) == {(224, 220, 1)} and augment.output_shape(None, (3, 4, 5)) == (3, 4, 5)
    result = np.asarray(mapped(augment.preset("fedmr_cifar100"))(images, keys))
    assert result.min() >= 0 and result.max() <= 255 and np.all(result == np.rint(result))
    assert not np.array_equal(result, images)
    assert augment.preset("none")(images, None) is images


@cases(
    (lambda: augment.output_shape(augment.auto_augment, (8, 8, 4)), "images of 4 channels: .* expects 1"),
    (lambda: augment.preset("cifar"), "augmentation 'cifar': expected one of none, feddecorr_cifar10"),
    (lambda: augment.crop(jnp.zeros((8, 8, 1)), None, mode="zero"), "crop mode 'zero': expected one of constant"),
    (lambda: augment.output_shape(augment.preset("flamby_isic2019"), (224, 199, 3)), "199 .* at least 200 x 200"),
    (lambda: augment.jitter(jnp.zeros((8, 8, 3)), None, hue=0.6), "jitter hue 0.6: expected a part"),
    (lambda: augment.auto_augment(jnp.zeros((8, 8, 3)), None, "timm"), "rule 'timm': expected one of feddecorr, "),
)
def test_wrong_names_are_explained(call, message):
    check(message, call)
