"""Table 8 of FedMR (Fan et al., TMLR 2023): five baselines with prototypes, on Fashion-MNIST.

    python experiments/launch.py --config=experiments/configs/fedmr/table8.py:offline --workdir=runs/mr8

* ``:full``: with and without prototypes, on five splits. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

Not known: how a baseline takes prototypes. Ours is the most plausible, FedProc's loss added to its own; FedMR without
them is its first term. The paper has means over the five splits, and no other numbers.
"""

from experiments.configs.fedmr import base, table1

PROTOTYPES = {"fedprox": 80.29, "fednova": 78.76, "moon": 80.12, "feddyn": 81.21, "feddc": 80.57}  # percent, with them
ROWS = {"fedmr_intra": (81.03,), "fedmr": table1.AVERAGES["fedmr"][:1]}  # means over the five splits
for _arm, _mean in PROTOTYPES.items():
    ROWS |= {_arm: table1.AVERAGES[_arm][:1], f"{_arm}_prototypes": (_mean,)}


def _arms():
    fedproc = base.arms("fedproc")["fedproc"]["methods"]
    arms = {}
    for name, changes in base.arms(*PROTOTYPES).items():
        arms[name] = changes
        arms[f"{name}_prototypes"] = changes | dict(methods=changes.get("methods", {}) | fedproc)
    intra = dict(methods=dict(fedmr=base.FEDMR | dict(inter=0.0)))
    return arms | dict(fedmr_intra=intra) | base.arms("fedmr")


OF_PAPER = dict(source=f"{base.SOURCE}, Table 8", means=ROWS)
FMNIST = base.settings("fmnist", base.SPLITS)

get_config = base.on_splits(FMNIST, OF_PAPER, like="Fashion-MNIST", rounds=20, arms=_arms())
