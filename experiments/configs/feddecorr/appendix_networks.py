"""Appendices D and E of FedDecorr's ICLR version (2023): spectra of FedAvg with other networks and on other data.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_networks.py:offline --workdir=runs/nets

* ``:full``: ResNet18 and ResNet32 on CIFAR100, MobileNetV2 on CIFAR10 and Tiny-ImageNet, at four skews each, all ten
  local models. ``docs/data.md`` says how to get the data.
* ``:offline``: narrower ones on 8x8 digits, and a small network on glyphs of ten and of a hundred classes.
* ``:smoke``: two rounds of one skew.

Other methods of these appendices: ``appendix_methods.py``. Not known: the data set of the other networks; ours is that
of figures 2 to 7.
"""

from ml_collections import ConfigDict

from experiments.config.published import GLYPHS, GLYPHS_100, chosen, make_small
from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS

_NETWORKS = ("resnet18", "resnet32")  # paper


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("appendix_networks.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _at_all_alphas(studies):
    cells = [(name, alpha) for name in studies for alpha in ALPHAS]
    return {f"{name}-{alpha}": studies[name] | dict(partition=base.partition(alpha)) for name, alpha in cells}


def _full(config):
    base.full(config, base.arms("fedavg"))
    config.watch = "all"  # paper
    of_data = base.data_sets(())
    networks = {f"cifar100-{name}": of_data["cifar100"] | dict(network=dict(name=name)) for name in _NETWORKS}
    config.settings = _at_all_alphas(networks | {name: of_data[name] for name in ("cifar10", "tiny")})


def _offline(config):
    _narrow(config, 0.25)


def _narrow(config, width):
    base.offline_100(config, base.arms("fedavg"))
    config.watch = "all"
    config.seeds = (0,)
    networks = {f"digits-{name}": dict(network=dict(name=name, width_multiplier=width)) for name in _NETWORKS}
    config.settings = _at_all_alphas(networks | dict(glyphs10=dict(data=GLYPHS), glyphs100=dict(data=GLYPHS_100)))


def _smoke(config):
    _narrow(config, 0.1)
    make_small(config, [f"{name}-0.25" for name in ("digits-resnet18", "digits-resnet32", "glyphs10", "glyphs100")])
