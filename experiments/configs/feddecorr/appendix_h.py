"""Appendix H of FedDecorr's ICLR version (2023): its loss of every client within the epochs of a round, on CIFAR10.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_h.py:offline --workdir=runs/appendix_h

* ``:full``: FedAvg with it, MobileNetV2, ten clients, alpha 0.05. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report shows the losses of the last round, "Losses within a round"; those of every round are in ``clients.npz``. Not
known: the number of clients, alpha and the round; ours are a guess.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feddecorr import base


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("appendix_h.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.with_and_without())
    config.training.logged_epochs = config.training.epochs
    config.settings = {"cifar10-0.05": base.data_sets(())["cifar10"] | dict(partition=base.partition(0.05))}


def _offline(config):
    base.offline(config, base.with_and_without())
    config.training.logged_epochs = config.training.epochs
    config.settings = {"digits-0.05": dict(partition=base.partition(0.05))}


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.05"])
