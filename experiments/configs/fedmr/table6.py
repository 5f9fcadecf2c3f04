"""Table 6 of FedMR (Fan et al., TMLR 2023): each of its two terms alone, both, and none.

    python experiments/launch.py --config=experiments/configs/fedmr/table6.py:offline --workdir=runs/mr6

* ``:full``: on the settings of table 1. ``docs/data.md`` says how to get the data.
* ``:offline``: the five splits of 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

The paper has means over the five splits of each data set, and no other numbers. Its strengths are not known, so
``:full`` is not comparable either.
"""

from experiments.configs.fedmr import base, table1

MEANS = {  # percent, over the splits of Fashion-MNIST, SVHN, CIFAR10, CIFAR100
    "none": table1.AVERAGES["fedavg"],
    "inter": (80.18, 87.46, 78.86, 66.62),
    "intra": (81.03, 87.15, 80.89, 67.11),
    "both": table1.AVERAGES["fedmr"],
}


def _fedmr(**off):
    return dict(methods=dict(fedmr=base.FEDMR | off))


SOURCE, OF_CIFAR10 = f"{base.SOURCE}, Table 6", {arm: row[2:3] for arm, row in MEANS.items()}

get_config = base.on_splits(
    base.SETTINGS,
    dict(source=SOURCE, means=MEANS),
    dict(source=f"{SOURCE}, CIFAR10", means=OF_CIFAR10),
    arms=dict(none=dict(), inter=_fedmr(intra=0.0), intra=_fedmr(inter=0.0), both=_fedmr()),
)
