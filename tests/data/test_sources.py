"""Folders, Parquet and npz files on small data made here: real readers, and the same pixels back."""

import io
import struct
import warnings
import zlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import cases, check
from PIL import Image
from small_data import NAMES, assert_parts, assert_same, draw, save_classes, save_image, save_parquet, save_parts

from fedjax_collapse import Federation, partition, sources

pytestmark = pytest.mark.usefixtures("own_cache")


@cases(
    ("1", 1, [255]),
    ("L", 200, [200]),
    ("LA", (200, 0), [200]),  # transparency is dropped, as by torchvision
    ("I;16", 0x9C01, [0x9B]),  # of 65535
    ("I", 0x9C01, [0x9B]),
    ("P", 7, [7, 14, 21]),
    ("RGB", (1, 2, 3), [1, 2, 3]),
    ("RGBA", (1, 2, 3, 0), [1, 2, 3]),
    ("CMYK", (255, 0, 0, 0), [0, 255, 255]),
)
def test_images_of_all_kinds_become_8_bits_of_one_or_three_channels(mode, colour, expected, tmp_path):
    image = Image.new(mode, (8, 8), colour)
    image.putpixel((0, 0), 0 if isinstance(colour, int) else (0,) * len(colour))
    options = {}
    if mode == "P":
        image.putpalette([value for entry in range(256) for value in (entry, 2 * entry % 256, 3 * entry % 256)])
        options["transparency"] = bytes(range(256))
    for folder in ("train/ant", "train/bee", "test/ant"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        image.save(tmp_path / "data" / folder / f"0.{'tif' if mode in ('I', 'CMYK') else 'png'}", **options)
    source = sources.folder(str(tmp_path / "data"), channels=0, scale=65535)
    assert source.images.shape == (2, 8, 8, len(expected)) and np.all(source.images[:, 1:] == expected)
    colours = sources.folder(str(tmp_path / "data"), scale=65535).images
    assert colours.shape == (2, 8, 8, 3) and np.all(colours[:, 1:] == expected)


@cases("I;16", "I", "F")
def test_grey_levels_beyond_8_bits_need_a_scale(kind, tmp_path):
    """A number, or the largest of the training part, which is all that later images are compared with."""
    levels = {"train/ant": (0, 95, 190), "train/bee": (0, 0, 10), "test/ant": (0, 95, 240), "test/bee": (0, 0, 0)}
    for folder, own in levels.items():
        (tmp_path / "data" / folder).mkdir(parents=True)
        types = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
        Image.fromarray(np.array([own], types[kind])).save(tmp_path / "data" / folder / "0.tif")
    check("0.tif: grey levels of more than 8 bits, 0 to 190; set data.scale", sources.folder, tmp_path / "data")
    check("0.tif: .* 0 to 190, expected 0 to 100; set data.scale", sources.folder, tmp_path / "data", scale=100)
    check("scale -1 is not positive", sources.folder, tmp_path / "data", scale=-1)
    check("scale 'most': expected", sources.folder, tmp_path / "data", scale="most")
    largest, given = (sources.folder(tmp_path / "data", channels=1, scale=scale) for scale in ("max", 380))
    assert largest.images[..., 0].tolist() == [[[0, 128, 255]], [[0, 0, 13]]]
    assert largest.test_images[..., 0].tolist() == [[[0, 128, 255]], [[0, 0, 0]]]  # 240 is clipped
    assert given.images[..., 0].tolist() == [[[0, 64, 128]], [[0, 0, 7]]]
    assert given.test_images[0, ..., 0].tolist() == [[0, 64, 161]]


def test_colours_of_16_bits_lose_half_of_them_only_if_asked(tmp_path):
    """Pillow reads the upper eight, of which nothing is left of small values."""
    row = np.array([[[1000, 40000, 65535], [0, 255, 256]]], ">u2")
    for folder in ("train/ant", "train/bee", "test/ant"):
        file = tmp_path / "data" / folder / "0.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(png_of_16_bits(row))
    for scale in (None, "max", 1000):
        message = "0.png: colours of 16 bits, of which the upper eight can be read; set data.scale=65535, or convert"
        check(message, sources.folder, tmp_path / "data", scale=scale)
    assert sources.folder(tmp_path / "data", scale=65535).images[0].tolist() == (row >> 8).tolist()


def png_of_16_bits(rows):
    """A PNG file of colours of 16 bits, which Pillow does not write."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], 16, 2, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def test_images_of_one_colour_each_are_an_error(tmp_path):
    """They are what is left of images whose range was taken wrongly. One that is not is enough."""
    images = np.full((4, 8, 8, 3), 7, np.uint8)
    arrays = dict(labels=np.arange(4), test_images=images, test_labels=np.arange(4))
    np.savez(tmp_path / "data.npz", images=images, **arrays)
    check("each of the 4 training images is of one colour, 7 to 7; expected images", sources.npz, tmp_path / "data.npz")
    images[3, 0, 0, 0] = 8
    np.savez(tmp_path / "data.npz", images=images, **arrays)
    assert sources.npz(tmp_path / "data.npz").images.max() == 8


@cases("folder", "parquet", "arrow", "csv")
def test_orientation_is_applied_by_every_reader(source, tmp_path):
    """As Hugging Face does: 6 is a camera held upright, of which the file has the rows from right to left."""
    images, labels = draw(8, (6, 8, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, content = np.rot90(images, -1, axes=(1, 2)), []
    for row, image in enumerate(images):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", exif=exif)
        content.append(buffer.getvalue())
        for part in ("train", "test"):
            file = tmp_path / "folder" / part / NAMES[labels[row]] / f"{part}{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(buffer.getvalue())
    for part in ("train", "test"):
        save_parquet(tmp_path / "parquet" / f"{part}.parquet", content, labels)
        table = pyarrow.parquet.read_table(tmp_path / "parquet" / f"{part}.parquet")
        (tmp_path / "arrow" / part).mkdir(parents=True)
        with pyarrow.ipc.new_stream(tmp_path / "arrow" / part / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table)
        lines = [f"{part}{row}.png,{label},u" for row, label in enumerate(labels)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["image_id,class,user_id", *lines]))
    options = dict(test_file=tmp_path / "test.csv", image_folder=tmp_path / "folder") if source == "csv" else {}
    path = tmp_path / ("train.csv" if source == "csv" else source)
    read = getattr(sources, source)(path, **options)
    assert_parts(read, (turned, labels), (turned, labels))


@cases(("Training", "Testing"), ("TRAIN", "Test"), ("training", "valid"))
def test_names_of_parts_are_known_in_any_capitals(train, test, tmp_path):
    """And a class that is named like a part stays a class inside one."""
    examples, tested = draw(16, (9, 7, 3)), draw(8, (9, 7, 3), seed=1)
    save_classes(tmp_path / "data" / train, *examples)
    save_classes(tmp_path / "data" / test, *tested)
    for part in (train, test):
        (tmp_path / "data" / part / "ant").rename(tmp_path / "data" / part / "test")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        source = sources.folder(tmp_path / "data", normalisation="imagenet")
    assert source.class_names == ("bee", "cat", "dog", "test") and source.domains is None
    renamed = [(images, (labels - 1) % 4) for images, labels in (examples, tested)]
    assert_parts(source, *renamed)
    np.testing.assert_allclose(source.mean, np.array([0.485, 0.456, 0.406]) * 255)
    lines = [str(warning.message) for warning in said]
    assert lines == [f"{tmp_path / 'data'}: there is no test part; the test part is valid"] * (test == "valid")


def test_channels_first_as_pytorch_has_them(tmp_path):
    """By an option; what is ambiguous has its channels last."""
    images, labels = draw(8, (6, 7, 3))
    first = np.moveaxis(images, -1, 1)
    np.savez(tmp_path / "data.npz", images=first, labels=labels, test_images=first, test_labels=labels)
    np.testing.assert_array_equal(sources.npz(tmp_path / "data.npz", channels_first=True).images, images)
    parts = partition.iid(labels, 2)
    made = Federation.from_arrays(first, labels, parts, first, labels, channels_first=True)
    np.testing.assert_array_equal(made.test.inputs, images)
    for shape in ((8, 3, 3, 3), (8, 3, 32, 3), (8, 1, 1, 50), (8, 3, 32, 4)):
        kept = np.zeros(shape, np.uint8)
        assert Federation.from_arrays(kept, labels, parts, kept, labels).input_shape == shape[1:]


def test_what_desktops_and_data_sets_leave_next_to_images_is_ignored(tmp_path):
    examples = draw(8, (8, 8, 3))
    folder = save_parts(tmp_path / "data") / "train"
    for name in (".DS_Store", "ant/.DS_Store", "ant/Thumbs.db", "ant/desktop.ini", "ant/ant_boxes.txt", "ant/._0.png"):
        (folder / name).write_bytes(b"no image")
    for name in (".ipynb_checkpoints", "__MACOSX", "ant/.ipynb_checkpoints", "dog/__MACOSX"):
        save_image(folder / name / "0.png", examples[0][0])
    source = sources.folder(str(tmp_path / "data"))
    assert_same(source.images, source.labels, *examples)
    assert source.class_names == NAMES


def test_links_are_followed_once(tmp_path):
    """Class folders may be links, and what changes behind them is read again; a link back to a folder above is not."""
    examples = draw(8, (8, 8, 3))
    save_classes(tmp_path / "elsewhere", *examples)
    for part in ("train", "test"):
        (tmp_path / "data" / part).mkdir(parents=True)
        for name in NAMES:
            (tmp_path / "data" / part / name).symlink_to(tmp_path / "elsewhere" / name)
    (tmp_path / "elsewhere" / "ant" / "back").symlink_to(tmp_path / "elsewhere" / "ant")
    source = sources.folder(str(tmp_path / "data"))
    assert_same(source.images, source.labels, *examples)
    save_image(tmp_path / "elsewhere" / "ant" / "9.png", examples[0][0])
    assert len(sources.folder(str(tmp_path / "data")).images) == 9


def test_tiny_imagenet_as_it_is_unpacked(tmp_path):
    """Training images one folder deeper, validation classes in a file, and unlabelled test images."""
    train, test = draw(12, (8, 8, 3)), draw(8, (8, 8, 3), seed=1)
    for row, (image, label) in enumerate(zip(*train, strict=True)):
        save_image(tmp_path / "data" / "train" / NAMES[label] / "images" / f"{row}.png", image)
    lines = []
    for row, (image, label) in enumerate(zip(*test, strict=True)):
        save_image(tmp_path / "data" / "val" / "images" / f"val_{row}.png", image)
        lines.append(f"val_{row}.png\t{NAMES[label]}\t0\t0\t7\t7\n")
    (tmp_path / "data" / "val" / "val_annotations.txt").write_text("".join(lines))
    save_image(tmp_path / "data" / "test" / "images" / "test_0.png", train[0][0])
    source = sources.folder(str(tmp_path / "data"))
    assert_parts(source, train, test)
    grey = sources.folder(str(tmp_path / "data"), channels=1)
    np.testing.assert_array_equal(grey.images[0, ..., 0], np.asarray(Image.fromarray(source.images[0]).convert("L")))


def test_domains_of_classes_without_a_split(tmp_path):
    """PACS' layout: a fixed number of every class and domain is held out, by the seed."""
    for domain, seed in (("art", 0), ("photo", 1)):
        save_classes(tmp_path / "data" / domain, *draw(20, (8, 8, 3), seed))
    source = sources.folder(str(tmp_path / "data"), domains=True, test_per_class=2)
    assert source.domain_names == ("art", "photo")
    assert source.domains.tolist() == [0] * 12 + [1] * 12 and source.test_domains.tolist() == [0] * 8 + [1] * 8
    assert np.all(np.bincount(source.test_labels[source.test_domains == 1]) == 2)
    images = [draw(20, (8, 8, 3), seed)[0] for seed in (0, 1)]
    every = np.concatenate([source.images, source.test_images])
    assert sorted(image.tobytes() for image in every) == sorted(image.tobytes() for image in np.concatenate(images))
    other = sources.folder(str(tmp_path / "data"), domains=True, test_per_class=2, seed=1)
    assert not np.array_equal(other.images, source.images)
    fraction = sources.folder(str(tmp_path / "data"), domains=True, test_fraction=0.4)
    assert len(fraction.test_images) == 16


def test_domains_with_parts_of_their_own(tmp_path):
    """Office-Caltech10's layout, in which each domain has its training and test part."""
    for seed, domain in enumerate(("amazon", "dslr")):
        save_classes(tmp_path / "data" / domain / "train", *draw(12, (8, 8, 3), seed))
        save_classes(tmp_path / "data" / domain / "test", *draw(8, (8, 8, 3), seed + 2))
    source = sources.folder(str(tmp_path / "data"), domains=True)
    assert source.domain_names == ("amazon", "dslr") and source.class_names == NAMES
    for domain in (0, 1):
        for part, count, seed in (("", 12, domain), ("test_", 8, domain + 2)):
            images, labels, domains = (getattr(source, part + name) for name in ("images", "labels", "domains"))
            assert_same(images[domains == domain], labels[domains == domain], *draw(count, (8, 8, 3), seed))


def test_isic2019_in_the_order_of_its_split_file(tmp_path):
    """Centres are domains, images are cropped to their central square, and the partition agrees."""
    images, _ = draw(24, (12, 20, 3))
    targets, centers, folds = np.arange(24) % 8, np.arange(24) % 6, np.where(np.arange(24) % 4, "train", "test")
    lines = ["image,target,center,fold"]
    for row in np.random.default_rng(0).permutation(24):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(images[row]).save(tmp_path / "images" / f"ISIC_{row}.jpg", quality=100, subsampling=0)
        lines.append(f"ISIC_{row},{targets[row]},{centers[row]},{folds[row]}")
    split = tmp_path / "train_test_split"
    split.write_text("\n".join(lines))
    source = sources.isic2019(str(tmp_path / "images"), str(split), image_size=12)
    order = [int(line.split(",")[0][5:]) for line in lines[1:] if line.endswith("train")]
    np.testing.assert_array_equal(source.labels, targets[order])
    np.testing.assert_array_equal(source.domains, centers[order])
    assert np.abs(source.images.astype(int) - images[order][:, :, 4:16]).mean() < 3  # of JPEG
    assert len(source.test_images) == 6 and len(source.domain_names) == 6 and source.class_names[0] == "MEL"
    parts = partition.isic2019(source.labels, 6, str(split))
    assert [np.unique(source.domains[part]).tolist() for part in parts] == [[0], [1], [2], [3], [4], [5]]
    assert sorted(np.concatenate(parts)) == [*range(18)]
    check("training images are not the", partition.isic2019, source.labels[::-1].copy(), 6, str(split))


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz_of_three_conventions(tmp_path, names):
    images, labels = draw(12, (8, 8))
    path = tmp_path / "data.npz"
    np.savez(path, **dict(zip(names, (images, labels[:, None], images[:4], labels[:4]), strict=True)))
    source = sources.npz(str(path), normalisation="half")
    np.testing.assert_array_equal(source.images, images[..., None])
    np.testing.assert_array_equal(source.labels, labels)
    assert source.class_names == ("0", "1", "2", "3") and source.test_images.shape == (4, 8, 8, 1)


def test_the_cache_is_read_again_until_the_data_change(tmp_path, monkeypatch):
    first = sources.folder(str(save_parts(tmp_path / "data")))
    with monkeypatch.context() as patch:
        patch.setattr("fedjax_collapse.data.reading.images.encoded._decode", None)
        again = sources.folder(str(tmp_path / "data"))
    np.testing.assert_array_equal(first.images, again.images)
    assert again.class_names == NAMES and again.images.dtype == np.uint8
    changed = next((tmp_path / "data" / "train").rglob("*.png"))
    save_image(changed, 255 - first.images[0])
    assert not np.array_equal(sources.folder(str(tmp_path / "data")).images, first.images)
