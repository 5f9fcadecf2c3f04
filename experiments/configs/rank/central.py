"""FedDecorr's central claim with the papers' networks: skewed labels collapse features, and FedDecorr helps.

    python experiments/launch.py --config=experiments/configs/rank/central.py:cpu --workdir=runs/central
    fedjax-collapse report runs/central --format=md

FedAvg with and without FedDecorr as ``feddecorr/figures2_7.py:full`` has them (ten clients, ten local epochs, published
strength; R of all local models), on a part of MNIST, at Dirichlet 0.05 and 0.5. Behind the file name:

* ``gpu``: MobileNetV2, images of 32x32, 30 rounds, one seed; ``--config.seeds="(0,1,2)"`` adds others. Four runs of
  1.2 million samples each.
* ``cpu``: ``small_cnn``, 12 rounds, and ResNet-20, six rounds, on images of 14x14, 1,000 for training; three seeds.
* ``smoke``: two rounds of ``small_cnn`` on the digits of scikit-learn.

``gpu`` and ``cpu`` need the extra ``mnist5k``. Small data: not comparable with the papers' tables.
"""

import functools
from typing import Annotated

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from experiments.configs import base
from experiments.configs.feddecorr import base as feddecorr
from experiments.configs.feddecorr import figures2_7
from fedjax_collapse.config.published import crossed
from fedjax_collapse.data import sources
from fedjax_collapse.schema.options import Count, Interval, checked

SKEWS = feddecorr.skews((0.05, 0.5))
NETWORKS = {  # of ``cpu``: what two cores train in a quarter of an hour
    "small_cnn": dict(network=dict(name="small_cnn"), rounds=12),
    "resnet20": dict(network=dict(name="resnet20"), rounds=6),
}


@checked
def mnist5k(image_size: Count = 32, train_size: Annotated[int, Interval(1, 4000)] = 4000) -> sources.Source:
    """Returns ``sources.mnist5k`` with resized images (bilinear) and the first of its training examples.

    Args:
        image_size: height and width in pixels.
        train_size: number of training examples, which are in random order.

    Raises:
        UserError: an argument is invalid, or as in ``sources.mnist5k``.
    """
    source = sources.mnist5k()

    def resized(images):
        pictures = [Image.fromarray(image[..., 0]) for image in images]
        size, method = (image_size, image_size), Image.Resampling.BILINEAR
        return np.stack([np.asarray(picture.resize(size, method))[..., None] for picture in pictures])

    return source._replace(
        images=resized(source.images[:train_size]),
        labels=source.labels[:train_size],
        test_images=resized(source.test_images),
    )


@base.variants("cpu", "gpu", "smoke", start=functools.partial(figures2_7.get_config, "full"))
def get_config(config: ConfigDict, arg: str) -> None:
    config.settings, config.seeds, config.rounds = SKEWS, (0,), 30
    config.data.source = "experiments.configs.rank.central:mnist5k"
    if arg == "cpu":
        config.settings, config.seeds, config.evaluate_every = crossed(NETWORKS, SKEWS), (0, 1, 2), 3
        config.data.image_size, config.data.train_size = 14, 1000
    elif arg == "smoke":
        config.network, config.data.source = dict(name="small_cnn", channels=(16,)), "digits"
        config.rounds, config.evaluate_every, config.training.epochs = 2, 1, 1
