"""Small data sets in the layouts that sources read, and their comparison with what was read."""

import io
import json
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import registered

NAMES = ("ant", "bee", "cat", "dog")


def draw(count, shape, seed=0):
    """Images and labels of four classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), np.uint8), rng.permutation(np.arange(count) % len(NAMES))


def save_image(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.squeeze()).save(file)


def save_classes(root, images, labels):
    """A folder per class."""
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        save_image(root / NAMES[label] / f"{row:03d}.png", image)


def save_parts(root, *examples):
    """A folder per class in the training and in the test part, with the same examples; returns the root."""
    for part in ("train", "test"):
        save_classes(root / part, *(examples or draw(8, (8, 8, 3))))
    return root


def assert_fields(source, **expected):
    """The source has these fields; arrays, lists and tuples alike."""
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(source, name), value, name)


def assert_same(images, labels, expected_images, expected_labels):
    """The same pairs in any order."""
    pairs, expected = (
        sorted((image.tobytes(), int(label)) for image, label in zip(*both, strict=True))
        for both in ((images, labels), (expected_images, expected_labels))
    )
    assert images.shape == expected_images.shape and images.dtype == np.uint8 and pairs == expected


def assert_parts(source, train, test):
    """The source has these training and test examples in any order."""
    assert_same(source.images, source.labels, *train)
    assert_same(source.test_images, source.test_labels, *test)


def encode(image):
    """A PNG file's bytes."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def save_npz(file, **members):
    """Arrays, or the bytes of what is stored as one."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            if not isinstance(value, bytes):
                np.save(buffer := io.BytesIO(), value)
                value = buffer.getvalue()
            archive.writestr(f"{name}.npy", value)


def header(shape, kind):
    """That of an array in such a file."""
    facts = dict(shape=shape, fortran_order=False, descr=kind)
    np.lib.format.write_array_header_1_0(buffer := io.BytesIO(), facts)
    return buffer.getvalue()


def save_parquet(file, contents, labels, names=NAMES, image="image", label="label", group=None, **more):
    """Hugging Face's layout, with its metadata if there are names; ``contents`` are images or encoded ones."""
    encoded = [content if isinstance(content, bytes) else encode(content) for content in contents]
    table = pyarrow.table({image: [{"bytes": each, "path": None} for each in encoded], label: list(labels)} | more)
    if names:
        features = {label: {"names": list(names), "_type": "ClassLabel"}, image: {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file, row_group_size=group)


def save_arrow(file, table, kind="stream"):
    """An Arrow file, or a stream as Hugging Face writes them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with getattr(pyarrow.ipc, f"new_{kind}")(file, table.schema) as writer:
        writer.write_table(table)


def catalogue_builder(class_name, catalogue, parts):
    """A builder like the catalogue's, by name, version and features, of its own few images; and its class names.

    An image that is ``bytes`` is stored as it is.
    """
    configs = [config.name for config in catalogue.BUILDER_CONFIGS]
    features = dict(catalogue.info.features)
    names = features["label"].names
    if names[0] == "0":  # the catalogue takes them from the download
        names = [f"class {label}" for label in range(len(names))]
        features["label"] = tfds.features.ClassLabel(names=names)

    def info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def generate(self, images, labels):
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            image = image if isinstance(image, bytes) else Image.fromarray(image.squeeze())
            example = {"id": str(row), "image": image, "label": int(label)}
            yield (
                row,
                {name: value for name, value in (example | {"coarse_label": row % 2}).items() if name in features},
            )

    def split(self, manager):
        own = parts[self.builder_config.name] if configs else parts
        return {name: self._generate_examples(*data) for name, data in own.items()}

    methods = {"_info": info, "_split_generators": split, "_generate_examples": generate}
    methods |= {"VERSION": catalogue.VERSION, "BUILDER_CONFIGS": catalogue.BUILDER_CONFIGS}
    with registered.skip_registration():
        return type(class_name, (tfds.core.GeneratorBasedBuilder,), methods), tuple(names)
