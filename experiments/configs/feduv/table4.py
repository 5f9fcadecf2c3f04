"""Table 4 of FedUV (Son et al., CVPR 2024): each of its two terms alone, both, FedAvg and Freeze, on six data sets.

    python experiments/launch.py --config=experiments/configs/feduv/table4.py:offline --workdir=runs/uv4

* ``:full``: label skew with alpha 0.01, and domains. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits and glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of digits and of domains.

The table's number for Freeze on CIFAR100, 54.1, is not that of table 1, 51.1.
"""

from experiments.config.published import compared
from experiments.configs.feduv import base

PAPER = {  # percent: STL10, CIFAR100, Tiny-ImageNet, PACS, HAM10000, Office-Home
    "fedavg": (27.6, 51.6, 37.5, 61.9, 73.7, 42.2),
    "freeze": (23.7, 54.1, 38.9, 61.6, 73.2, 41.3),
    "only_variance": (29.5, 54.0, 38.8, 60.1, 72.5, 41.8),
    "only_uniformity": (24.1, 52.8, 37.9, 63.7, 73.4, 43.5),
    "feduv": (30.4, 55.7, 40.3, 65.9, 73.9, 45.4),
}

get_config = base.study(
    __file__,
    arms=base.arms(*PAPER),
    full=dict(settings=base.data_sets(), paper=compared(f"{base.SOURCE}, Table 4", PAPER)),
    offline=dict(
        settings=base.offline_sets(),
        paper=compared(
            f"{base.SOURCE}, Table 4, STL10, CIFAR100, PACS",
            {arm: (row[0], row[1], row[3]) for arm, row in PAPER.items()},
            why=base.OFFLINE_WHY,
        ),
    ),
    smoke=["digits", "domains"],
)
