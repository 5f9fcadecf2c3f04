"""Table 4 of FedMR (Fan et al., TMLR 2023): rounds until FedAvg's best accuracy on CIFAR100, with up to 100 clients.

    python experiments/launch.py --config=experiments/configs/fedmr/table4.py:offline --workdir=runs/mr4

* ``:full``: the runs of table 2 on CIFAR100, evaluated after every round. ``docs/data.md``: the data.
* ``:offline``: the same splits of a hundred classes of glyphs, with a small network.
* ``:smoke``: two rounds of one split.

The target is the best accuracy of FedAvg in the same setting, here with the same seed; FedAvg stands with all its
rounds. ``fedjax-collapse report runs/mr4 --format=md,tex`` writes the table with the speed-ups, too.
"""

from experiments.configs.fedmr import base, table2

PAPER = {  # rounds: P10C10, P50C10, P100C10
    "fedavg": (400, 400, 400),
    "fedprox": (352, 370, 384),
    "fedproc": (357, 381, 389),
    "fednova": (290, 385, 382),
    "moon": (332, 373, 395),
    "feddyn": (178, 366, 384),
    "feddc": (275, 393, 387),
    "fedmr": (149, 293, 368),
}

get_config = base.study(
    arms=base.arms(),
    evaluate_every=1,
    settings=table2.CIFAR100,
    offline_settings=table2.OFFLINE_100,
    offline=table2.OFFLINE,
    **table2.paper("Table 4", PAPER, metric="rounds_to_target", target="fedavg"),
    smoke=["glyphs100-P10C10"],
)
