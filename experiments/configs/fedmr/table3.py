"""Table 3 of FedMR (Fan et al., TMLR 2023): how many numbers a client sends, without training.

    fedjax-collapse communication --config=experiments/configs/fedmr/table3.py:offline

* ``:full``: the networks of table 1, and EfficientNet-B0 for ISIC2019. ``docs/data.md``: the data, read for its shapes.
* ``:offline``: the same networks for synthetic images of the same shape: the same numbers. ISIC2019 is left out.
* ``:smoke``: a small network.

The paper's numbers are of state dicts, one way, in millions of three decimals, and with prototypes of C d more. That is
the column ``state dict``; next to it ``methods`` has C d and C more: which prototypes there are (down), of how many
examples each is (up). The paper adds C d in millions, rounded to three decimals: unrounded, Fashion-MNIST's sum is
11.188M. With prototypes it sends 0.044, 0.044, 0.044, 0.175 and 0.102 % more.
"""

from experiments.configs.fedmr import base, table2
from fedjax_collapse.config.published import GLYPHS, GLYPHS_100

PAPER = {  # FMNIST, SVHN, CIFAR10, CIFAR100, ISIC2019
    "fedavg": (11.182e6, 11.184e6, 11.184e6, 36.565e6, 4.875e6),
    "fedmr": (11.187e6, 11.189e6, 11.189e6, 36.629e6, 4.880e6),
}

_SHAPES = {  # of the images that each data set has
    "fmnist": GLYPHS | dict(image_size=28),
    "svhn": GLYPHS | dict(image_size=32, channels=3),
    "cifar10": GLYPHS | dict(image_size=32, channels=3),
    "cifar100": GLYPHS_100 | dict(image_size=32, channels=3),
}


def _with_splits(settings):
    cifar100, others = base.split(10, 10), base.split(10, 2)
    return {name: setting | (cifar100 if name == "cifar100" else others) for name, setting in settings.items()}


FULL = _with_splits(base.DATA) | dict(isic2019=table2.ISIC)
GLYPHS_OF = {name: dict(data=data | dict(train_size=1000, test_size=100)) for name, data in _SHAPES.items()}
NETWORKS = {name: setting | dict(network=base.DATA[name]["network"]) for name, setting in GLYPHS_OF.items()}

get_config = base.study(
    arms=base.arms(),
    # the paper's numbers of the first of its data sets; they depend on shapes alone
    paper=dict(source=f"{base.SOURCE}, Table 3", rows=PAPER, metric="numbers_sent"),
    settings=FULL,
    offline_settings=_with_splits(NETWORKS),
    smoke=["fmnist"],
    smoke_settings=_with_splits(GLYPHS_OF),
)
