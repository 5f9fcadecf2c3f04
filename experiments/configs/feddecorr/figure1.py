"""Figure 1 (b to d) of FedDecorr (TPAMI 2023): features of ResNet20 on CIFAR10, projected to the unit sphere.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure1.py:offline --workdir=runs/figure1

* ``:full``: ResNet20 on CIFAR10. ``docs/data.md`` says how to get the data.
* ``:offline``: a narrower ResNet20 on 8x8 digits.
* ``:smoke``: two rounds of it, narrower still.

The report has the sphere for each setting, from features that are saved every tenth round and after the last. Not
known: how 64 features become three (ours: principal axes), and which alphas and methods are shown; ours are 0.05 and no
skew, FedAvg with and without FedDecorr. Beside it a linear probe tells collapsed features from a biased classifier.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feddecorr import base

ALPHAS = (0.05, "iid")  # our choice


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure1.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _measured(config):
    config.measurements, config.measure_every = dict(features="features", probe="linear_probe"), 10


def _full(config):
    base.full(config, base.with_and_without())
    _measured(config)
    config.network.name = "resnet20"  # paper
    cifar10 = base.data_sets(())["cifar10"]
    config.settings = {f"cifar10-{alpha}": cifar10 | dict(partition=base.partition(alpha)) for alpha in ALPHAS}


def _offline(config):
    base.offline(config, base.with_and_without())
    _measured(config)
    config.network = dict(name="resnet20", width_multiplier=0.5)
    config.settings = {f"digits-{alpha}": dict(partition=base.partition(alpha)) for alpha in ALPHAS}


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.05"], name="resnet20", width_multiplier=0.25)
