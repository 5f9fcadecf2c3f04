"""Table 4 of FedUV (Son et al., CVPR 2024): each of its two terms alone, both, FedAvg and Freeze, on six data sets.

    python experiments/launch.py --config=experiments/configs/feduv/table4.py:offline --workdir=runs/uv4

* ``:full``: label skew with alpha 0.01, and domains. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits and glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of digits and of domains.

The table's number for Freeze on CIFAR100, 54.1, is not that of table 1, 51.1. FedAvg's and FedUV's are legible for
STL10 alone, where they are table 1's: the others are taken from there.
"""

from experiments.configs.feduv import base

PAPER = {  # percent: STL10, CIFAR100, Tiny-ImageNet, PACS, HAM10000, Office-Home
    "fedavg": (27.6, 51.6, 37.5, 61.9, 73.7, 42.2),
    "freeze": (23.7, 54.1, 38.9, 61.6, 73.2, 41.3),
    "only_variance": (29.5, 54.0, 38.8, 60.1, 72.5, 41.8),
    "only_uniformity": (24.1, 52.8, 37.9, 63.7, 73.4, 43.5),
    "feduv": (30.4, 55.7, 40.3, 65.9, 73.9, 45.4),
}
SPREADS = {  # standard deviation over three runs, in the same places
    "fedavg": (1.6, 1.7, 0.9, 0.6, 0.3, 1.1),
    "freeze": (1.5, 1.5, 1.9, 0.5, 0.3, 1.8),
    "only_variance": (1.4, 1.1, 1.5, 0.3, 0.4, 1.1),
    "only_uniformity": (1.3, 1.2, 1.7, 0.3, 0.2, 1.3),
    "feduv": (1.4, 1.0, 0.8, 0.9, 0.5, 1.0),
}

get_config = base.study(
    arms=base.arms(*PAPER),
    settings=base.data_sets(),
    offline_settings=base.offline_sets(),
    smoke=["digits", "domains"],
    **base.papers("Table 4", PAPER, SPREADS, columns=(0, 1, 3)),
)
