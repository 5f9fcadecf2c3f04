"""Table 5 of FedUV (Son et al., CVPR 2024): how long a round takes with five methods on six data sets.

    python experiments/launch.py --config=experiments/configs/feduv/table5.py:offline --workdir=runs/uv5

* ``:full``: the published settings for five rounds. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits and glyphs, with a small network.
* ``:smoke``: two rounds of digits.

The table is of seconds of training per round (median over rounds, without those that compile). Below the figure of
times are evaluation and memory. The paper's are of one RTX A5000 and one EPYC 7763. Not known: alpha (ours 0.01).
"""

from experiments.configs.feduv import base

PAPER = {  # seconds per round: STL10, CIFAR100, Tiny-ImageNet, PACS, HAM10000, Office-Home
    "fedavg": (26, 57, 728, 47, 131, 359),
    "fedprox": (27, 67, 823, 48, 135, 371),
    "moon": (37, 88, 1186, 70, 145, 493),
    "freeze": (26, 56, 728, 47, 129, 351),
    "feduv": (27, 58, 755, 48, 132, 362),
}
WHY = "times of another device (RTX A5000, EPYC 7763) and another program"

get_config = base.study(
    arms=base.arms(),
    seeds=(0,),  # one of each
    evaluate_every=1,
    engine=dict(runs="separate"),  # each run alone
    settings={name: setting | dict(rounds=5) for name, setting in base.data_sets().items()},  # our choice
    offline_settings=base.offline_sets(),
    offline=dict(rounds=10),
    smoke=["digits"],
    **base.papers("Table 5", PAPER, columns=(0, 1, 3), why=WHY, metric="seconds_per_round"),
)
