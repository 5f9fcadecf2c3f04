"""Table 8 of FedMR (Fan et al., TMLR 2023): five baselines with prototypes, on Fashion-MNIST.

    python experiments/launch.py --config=experiments/configs/fedmr/table8.py:offline --workdir=runs/mr8

* ``:full``: with and without prototypes, on five splits. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

Not known: how a baseline takes prototypes. Ours is the most plausible, FedProc's loss beside its own; FedMR without
them is its first term. The paper has means over the five splits, and no other numbers.
"""

from ml_collections import ConfigDict

from experiments.config.plain_values import plain
from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.fedmr import base

MEANS = {  # percent, over the five splits: without, with prototypes
    "fedprox": (79.89, 80.29),
    "fednova": (75.84, 78.76),
    "moon": (79.87, 80.12),
    "feddyn": (80.26, 81.21),
    "feddc": (80.09, 80.57),
}
FEDMR = {"fedmr_intra": (81.03,), "fedmr": (83.45,)}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table8.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _arms():
    fedproc = base.arms("fedproc")["fedproc"]["methods"]
    arms = {}
    for name, changes in base.arms(*MEANS).items():
        arms[name] = changes
        arms[f"{name}_prototypes"] = changes | dict(methods=changes.get("methods", {}) | fedproc)
    intra = dict(methods=dict(fedmr=base.FEDMR | dict(inter=0.0)))
    return arms | dict(fedmr_intra=intra) | base.arms("fedmr")


def _full(config):
    base.full(config, _arms())
    config.settings = base.full_settings({f"fmnist-{n}": ("fmnist", *cut, 10) for n, cut in base.SPLITS.items()})
    _compare(config, base.WHY_FULL)


def _offline(config):
    base.offline(config, _arms())
    config.rounds = 20
    config.settings = {f"digits-{name}": base.split(*cut, 10) for name, cut in base.SPLITS.items()}
    _compare(config, base.WHY.format("Fashion-MNIST", "ResNet18"))


def _compare(config, why):
    """Means over the splits, with the paper's."""
    config.means = means = base.means_of_data(plain(config)["settings"])
    rows = dict(FEDMR)
    for arm, (without, prototypes) in MEANS.items():
        rows |= {arm: (without,), f"{arm}_prototypes": (prototypes,)}
    values = by_setting(rows, means)
    config.paper = dict(source=f"{base.SOURCE}, Table 8", comparable=False, why=why, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-P5C2", "digits-IID"])
