"""Samples per second of the networks and data of the papers' configs (``:full``) on one H100: measured, or estimated.

Where a network or its images were not measured, the rate is that of a measured network of the same kind, by their
operations for each sample, as JAX counts them. Projectors and heads are left out. No data are read.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks.compiling import programs
from experiments.config_files import config_files, load_config
from experiments.study.resolving import resolve
from fedjax_collapse.config import build
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import augment

_LEFT_OUT = ("projector", "projector_dim", "head", "normalize_features", "weights")  # options of networks
# samples/s of ten clients on one H100 in float32, batch 64, images 32x32x3: "Beside a captured CUDA graph" in
# docs/performance.md
_RATES = {"small_cnn": 421_000, "resnet20": 58_800, "resnet18": 18_900, "mobilenet_v2": 9_730}
_LIKE = {  # the measured network of the same kind
    "feduv_cnn": "small_cnn",
    "alexnet": "small_cnn",
    "resnet32": "resnet20",
    "wide_resnet": "resnet18",
    "resnet50": "resnet18",
    "efficientnet_b0": "mobilenet_v2",
}
PUBLISHED = {  # by data source: classes, and the shape of an image before augmentation
    "cifar10": (10, (32, 32, 3)),
    "cifar100": (100, (32, 32, 3)),
    "fashion_mnist": (10, (28, 28, 1)),
    "svhn": (10, (32, 32, 3)),
    "stl10": (10, (96, 96, 3)),
    "folder:tiny-imagenet-200": (200, (64, 64, 3)),
    "folder:office": (10, (256, 256, 3)),
    "tfds:domainnet/clipart,infograph,painting,quickdraw,real,sketch": (10, (256, 256, 3)),
    "isic2019:ISIC_2019_Training_Input_preprocessed": (8, (224, 224, 3)),
    "folder:PACS": (7, (96, 96, 3)),
    "folder:HAM10000": (7, (96, 96, 3)),
    "folder:OfficeHome": (65, (96, 96, 3)),
}


def rows() -> Iterator[dict[str, Any]]:
    """Yields a row for a local step of each network, shape of images, number of classes and batch size."""
    files = [path for path in config_files() if path.parent.name in ("feddecorr", "fedmr", "feduv")]
    cells = [cell.values for path in files for cell in resolve(load_config(f"{path}:full"), Path()).cells]
    for step in dict.fromkeys(map(_step, cells)):
        network, shape, classes, batch_size = step
        title, *options = (f"{name}={value}" for name, value in network)
        name = title.removeprefix("name=")
        like = _LIKE.get(name, name)
        measured = (("name", like),), (32, 32, 3), programs.CLASSES, 64
        rate = _RATES[like] * _operations(*measured) / _operations(*step)
        yield {
            "network": ", ".join([name, *options]),
            "images": "x".join(map(str, shape)),
            "classes": classes,
            "batch": batch_size,
            "samples/s": int(float(f"{rate:.3g}")),
            "by": "measured" if step == measured else f"estimate from {like}",
        }


def _step(values):
    """Returns the network, shape of an augmented image, classes and batch size of a cell's local steps."""
    network = {name: option for name, option in values["network"].items() if name not in _LEFT_OUT}
    classes, shape = PUBLISHED[values["data"]["source"]]
    shape = augment.output_shape(build.augmentation(values["training"]["augmentation"]), shape)
    options = (("name", network.pop("name")), *sorted(network.items()))
    return options, shape, classes, values["training"]["batch_size"]


@functools.cache
def _operations(network, shape, classes, batch_size):
    """Returns the operations of a local step for each sample."""
    (_, name), *options = network
    model = programs.network(name, Target(), dict(options) | {"lowering": "xla"}, shape, classes)
    return programs.step(model, jax.devices("cpu")[0], 1, batch_size).cost_analysis()["flops"] / batch_size
