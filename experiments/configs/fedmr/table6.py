"""Table 6 of FedMR (Fan et al., TMLR 2023): each of its two terms alone, both, and none.

    python experiments/launch.py --config=experiments/configs/fedmr/table6.py:offline --workdir=runs/mr6

* ``:full``: on the settings of table 1. ``docs/data.md`` says how to get the data.
* ``:offline``: the five splits of 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

The paper has means over the five splits of each data set, and no other numbers. Its strengths are not known, so
``:full`` is not comparable either.
"""

from ml_collections import ConfigDict

from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.fedmr import base

MEANS = {  # percent, over the splits of Fashion-MNIST, SVHN, CIFAR10, CIFAR100
    "none": (79.35, 86.48, 78.58, 66.41),
    "inter": (80.18, 87.46, 78.86, 66.62),
    "intra": (81.03, 87.15, 80.89, 67.11),
    "both": (83.45, 87.98, 82.48, 67.66),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table6.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _arms():
    def fedmr(**off):
        return dict(methods=dict(fedmr=base.FEDMR | off))

    return dict(none=dict(), inter=fedmr(intra=0.0), intra=fedmr(inter=0.0), both=fedmr())


def _full(config):
    base.full(config, _arms())
    config.settings = settings = base.full_settings(base.splits_of_all())
    config.means = means = base.means_of_data(settings)
    values = by_setting(MEANS, means)
    config.paper = dict(source=f"{base.SOURCE}, Table 6", comparable=False, why=base.WHY_FULL, values=values)


def _offline(config):
    base.offline(config, _arms())
    config.settings = settings = {f"digits-{name}": base.split(*cut, 10) for name, cut in base.SPLITS.items()}
    config.means = means = base.means_of_data(settings)
    values = by_setting({arm: row[2:3] for arm, row in MEANS.items()}, means)
    why = base.WHY.format("CIFAR10", "ResNet18")
    config.paper = dict(source=f"{base.SOURCE}, Table 6, CIFAR10", comparable=False, why=why, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-P5C2", "digits-IID"])
