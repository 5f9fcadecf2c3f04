"""Table 8 of FedMR (Fan et al., TMLR 2023): five baselines with prototypes, on Fashion-MNIST.

    python experiments/launch.py --config=experiments/configs/fedmr/table8.py:offline --workdir=runs/mr8

* ``:full``: with and without prototypes, on five splits. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

Not known: how a baseline takes prototypes. Ours is the most plausible, FedProc's loss added to its own; FedMR without
them is its first term. The paper has means over the five splits, and no other numbers.
"""

from experiments.configs.fedmr import base
from fedjax_collapse.config.published import compared

MEANS = {  # percent, over the five splits: without, with prototypes
    "fedprox": (79.89, 80.29),
    "fednova": (75.84, 78.76),
    "moon": (79.87, 80.12),
    "feddyn": (80.26, 81.21),
    "feddc": (80.09, 80.57),
}
FEDMR = {"fedmr_intra": (81.03,), "fedmr": (83.45,)}

SOURCE = f"{base.SOURCE}, Table 8"


def _arms():
    fedproc = base.arms("fedproc")["fedproc"]["methods"]
    arms = {}
    for name, changes in base.arms(*MEANS).items():
        arms[name] = changes
        arms[f"{name}_prototypes"] = changes | dict(methods=changes.get("methods", {}) | fedproc)
    intra = dict(methods=dict(fedmr=base.FEDMR | dict(inter=0.0)))
    return arms | dict(fedmr_intra=intra) | base.arms("fedmr")


def _rows():
    """The paper's means over the splits, by arm."""
    rows = dict(FEDMR)
    for arm, (without, prototypes) in MEANS.items():
        rows |= {arm: (without,), f"{arm}_prototypes": (prototypes,)}
    return rows


FMNIST = base.settings("fmnist", base.SPLITS)

get_config = base.study(
    __file__,
    arms=_arms(),
    full=dict(
        settings=FMNIST,
        means=base.means_of_data(FMNIST),
        paper=compared(SOURCE, means=_rows(), why=base.WHY_FULL),
    ),
    offline=dict(
        settings=base.DIGITS_SETTINGS,
        means=base.means_of_data(base.DIGITS_SETTINGS),
        rounds=20,
        paper=compared(SOURCE, means=_rows(), why=base.WHY.format("Fashion-MNIST", "ResNet18")),
    ),
    smoke=["digits-P5C2", "digits-IID"],
)
