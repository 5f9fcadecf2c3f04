"""Small data sets in the files of torchvision, TFDS and Hugging Face."""

import gzip
import io
import pickle
import struct

import numpy as np
import scipy.io
import tensorflow_datasets as tfds
from small_data import catalogue_builder, save_parquet

SHAPES = {
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "svhn": (32, 32, 3),
    "stl10": (96, 96, 3),
}
CLASSES = {name: 100 if name == "cifar100" else 10 for name in SHAPES}


def draw(name, seed=0):
    """Training and test images and labels, one and a half rounds over the classes."""
    rng, count = np.random.default_rng(seed), 3 * CLASSES[name] // 2
    return [
        (rng.integers(0, 256, (size, *SHAPES[name]), np.uint8), rng.permutation(np.arange(size) % CLASSES[name]))
        for size in (2 * count, count)
    ]


class Python2Pickler(pickle._Pickler):
    """Writes texts as bytes, as Python 2 does."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_text(self, text):
        content = text.encode() if isinstance(text, str) else text
        short = b"U" + bytes([len(content)]) if len(content) < 256 else b"T" + struct.pack("<i", len(content))
        self.write(short + content)

    dispatch[str] = dispatch[bytes] = save_text


def python2_pickle(value):
    """A pickle of protocol 2, whose arrays are of the NumPy of that time."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")


def save_torchvision(name, root, parts):
    """The files below torchvision's root, MNIST's compressed; returns the names of the classes."""
    (train, test), names = parts, [f"class {label}" for label in range(CLASSES[name])]
    if name.startswith("cifar"):
        folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
        folder.mkdir(parents=True)
        images, labels = train
        files = {"train": train, "test": test}
        if name == "cifar10":
            rows = np.array_split(np.arange(len(labels)), 5)
            files = {f"data_batch_{part}": (images[own], labels[own]) for part, own in enumerate(rows, 1)}
            files["test_batch"] = test
        for file, (images, labels) in files.items():
            content = {"data": images.transpose(0, 3, 1, 2).reshape(len(images), -1)}
            key = "labels" if name == "cifar10" else "fine_labels"
            content |= {key: labels.tolist()} | ({"coarse_labels": (labels // 5).tolist()} if key != "labels" else {})
            (folder / file).write_bytes(python2_pickle(content))
        meta = ("batches.meta", "label_names") if name == "cifar10" else ("meta", "fine_label_names")
        (folder / meta[0]).write_bytes(python2_pickle({meta[1]: names}))
    elif name.endswith("mnist"):
        folder = root / {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name] / "raw"
        folder.mkdir(parents=True)
        for prefix, (images, labels) in (("train", train), ("t10k", test)):
            for kind, values in (("images-idx3", images[..., 0]), ("labels-idx1", labels.astype(np.uint8))):
                header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
                content = header + values.tobytes()
                content, suffix = (gzip.compress(content), ".gz") if name == "mnist" else (content, "")
                (folder / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(content)
        names = None  # not in the files
    elif name == "svhn":
        root.mkdir(parents=True, exist_ok=True)
        for part, (images, labels) in (("train", train), ("test", test)):
            digits = np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)
            scipy.io.savemat(root / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": digits})
        names = list("0123456789")
    else:
        folder = root / "stl10_binary"
        folder.mkdir(parents=True)
        for part, (images, labels) in (("train", train), ("test", test)):
            (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())
            (folder / f"{part}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
        (folder / "class_names.txt").write_text("\n".join(name.replace(" ", "_") for name in names) + "\n")
        names = [name.replace(" ", "_") for name in names]
    return names and tuple(names)


def save_tfds(name, root, parts):
    """TFDS's prepared folder."""
    builders = {"svhn": ("svhn_cropped", "SvhnCropped"), "fashion_mnist": ("fashion_mnist", "FashionMNIST")}
    own, class_name = builders.get(name, (name, {"mnist": "MNIST"}.get(name, name.capitalize())))
    catalogue = tfds.builder(own, data_dir=root / "none")
    builder, names = catalogue_builder(class_name, catalogue, dict(zip(("train", "test"), parts, strict=True)))
    builder(data_dir=root, file_format="array_record").download_and_prepare()
    return names


def save_hugging_face(name, root, parts):
    """A folder as ``hf download`` leaves it."""
    names = tuple(f"class {label}" for label in range(CLASSES[name]))
    below = {"cifar10": "plain_text", "svhn": "cropped_digits"}.get(name, "")
    columns = {"cifar10": dict(image="img"), "cifar100": dict(image="img", label="fine_label")}.get(name, {})
    for part, (images, labels) in zip(("train", "test"), parts, strict=True):
        file, more = f"{part}-00000-of-00001.parquet", {"coarse_label": labels // 5} if name == "cifar100" else {}
        save_parquet(root / name / below / file, map(np.squeeze, images), labels, names, **columns, **more)
        if name == "svhn":
            save_parquet(root / name / "full_numbers" / file, [b""], labels[:1], names)
    (root / name / "README.md").write_text("of the data set\n")
    return names
