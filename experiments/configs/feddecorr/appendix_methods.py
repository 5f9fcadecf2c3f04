"""Appendices D and E of FedDecorr's ICLR version (2023): spectra for FedAvgM, FedProx and MOON on CIFAR100.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_methods.py:offline --workdir=runs/d_e

* ``:full``: the three methods at four skews, MobileNetV2, all ten local models. ``docs/data.md``: the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one skew.

Other networks and data sets of these appendices: ``appendix_networks.py``. Not known: which of both is which appendix.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS

METHODS = ("fedavgm", "fedprox", "moon")  # paper


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("appendix_methods.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms(*METHODS))
    config.watch = "all"  # paper
    cifar100 = base.data_sets(METHODS)["cifar100"]
    config.settings = {f"cifar100-{alpha}": cifar100 | dict(partition=base.partition(alpha)) for alpha in ALPHAS}


def _offline(config):
    base.offline(config, base.arms(*METHODS))
    config.watch = "all"
    config.settings = {f"digits-{alpha}": dict(partition=base.partition(alpha)) for alpha in ALPHAS}


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.05"])
