"""Figure 8 of FedDecorr (TPAMI 2023): accuracy over rounds on Tiny-ImageNet, with and without it.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure8.py:offline --workdir=runs/figure8

* ``:full``: three alphas and three numbers of classes per client, MobileNetV2. ``docs/data.md``: the data.
* ``:offline``: the same kinds of settings on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one alpha and one number of classes.

The curves are in the report of every setting.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feddecorr import base

ALPHAS = (0.05, 0.1, 0.5)  # paper
CLASSES = (80, 90, 100)  # paper


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure8.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _partitions(classes):
    of_alpha = {f"{alpha}": base.partition(alpha) for alpha in ALPHAS}
    return of_alpha | {f"{number}-classes": base.pathological(number) for number in classes}


def _full(config):
    base.full(config, base.with_and_without())
    tiny = base.data_sets(())["tiny"]
    config.settings = {f"tiny-{name}": tiny | dict(partition=skew) for name, skew in _partitions(CLASSES).items()}
    config.evaluate_every = 1  # of the curve


def _offline(config):
    base.offline(config, base.with_and_without())
    config.settings = {f"digits-{name}": dict(partition=skew) for name, skew in _partitions((3, 4, 5)).items()}
    config.evaluate_every = 1


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.1", "digits-3-classes"])
