"""Table 3 of FedMR (Fan et al., TMLR 2023): how many numbers a client sends. Nothing is trained:

    fedjax-collapse communication --config=experiments/configs/fedmr/table3.py:offline

* ``:full``: the networks of table 1, and EfficientNet-B0 for ISIC2019. ``docs/data.md``: the data, read for its shapes.
* ``:offline``: the same networks for synthetic images of the same shape: the same numbers. ISIC2019 is left out.
* ``:smoke``: a small network.

The paper's numbers are of state dicts, one way, in millions of three decimals, and with prototypes of C d more. That is
the column ``state dict``; beside it ``methods`` has C d and C more: which prototypes there are (down), of how many
examples each is (up). Of the paper's numbers with prototypes we know those of CIFAR100 and ISIC2019.
"""

from ml_collections import ConfigDict

from experiments.config.plain_values import plain
from experiments.config.published import GLYPHS, GLYPHS_100, by_setting, chosen, make_small
from experiments.configs.fedmr import base, table2
from experiments.results.metrics import COUNTED

PAPER = {  # FMNIST, SVHN, CIFAR10, CIFAR100, ISIC2019
    "fedavg": (11.182e6, 11.184e6, 11.184e6, 36.565e6, 4.875e6),
    "fedmr": (None, None, None, 36.629e6, 4.880e6),
}

_SHAPES = {  # of the images that each data set has
    "fmnist": GLYPHS | dict(image_size=28),
    "svhn": GLYPHS | dict(image_size=32, channels=3),
    "cifar10": GLYPHS | dict(image_size=32, channels=3),
    "cifar100": GLYPHS_100 | dict(image_size=32, channels=3),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table3.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    of_data = {name: data_set | _split(name) for name, data_set in base.data_sets().items()}
    config.settings = of_data | dict(isic2019=table2.ISIC)
    _compare(config, tuple(config.settings))


def _offline(config):
    base.offline(config, base.arms())
    networks = {name: data_set["network"] for name, data_set in base.data_sets().items()}
    small = dict(train_size=1000, test_size=100)
    config.settings = {
        name: dict(data=data | small, network=networks[name]) | _split(name) for name, data in _SHAPES.items()
    }
    _compare(config, tuple(_SHAPES))


def _compare(config, settings):
    """With the paper's numbers of these, which are the first of its data sets; they depend on shapes alone."""
    values = by_setting(PAPER, settings)
    config.paper = dict(source=f"{base.SOURCE}, Table 3", comparable=True, metric=COUNTED.name, values=values)


def _split(data):
    return base.split(10, 10, 100) if data == "cifar100" else base.split(10, 2, 10)


def _smoke(config):
    _offline(config)
    settings = plain(config)["settings"]
    config.settings = {name: {key: s[key] for key in s if key != "network"} for name, s in settings.items()}
    make_small(config, ["fmnist"])
