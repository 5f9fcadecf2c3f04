"""Table 7 of FedMR (Fan et al., TMLR 2023): how uneven the eigenvalues of features are, on CIFAR10.

    python experiments/launch.py --config=experiments/configs/fedmr/table7.py:offline --workdir=runs/mr7

* ``:full``: nine arms with five splits for 100 rounds. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of two splits.

The paper's measure is (1/128) sum of squared deviations of the 50 largest eigenvalues of a batch of 128, whose matrix
is not known (one of all classes, or their sum): ours is of all rows together, the mean over batches of the test set.
The report has it as ``unevenness/eigenvalue_variance``, with the paper's numbers below.
"""

from experiments.configs.fedmr import base

METRIC = "measured/unevenness/eigenvalue_variance"
PAPER = {  # P5C2, P10C2, P10C3, P10C5, IID
    "fedavg": (1201, 1274, 1055, 814, 640),
    "fedprox": (931, 977, 874, 727, 582),
    "fedproc": (1044, 1074, 955, 739, 522),
    "fednova": (1234, 1277, 977, 755, 572),
    "moon": (749, 866, 774, 744, 579),
    "feddyn": (854, 906, 844, 759, 599),
    "feddc": (1077, 1104, 784, 766, 572),
    "fedmr": (570, 538, 566, 579, 635),
    "fedmr_intra": (478, 437, 372, 407, 538),
}

INTRA = dict(methods=dict(fedmr=base.FEDMR | dict(inter=0.0)))

get_config = base.on_splits(
    base.settings("cifar10", base.SPLITS),
    dict(source=f"{base.SOURCE}, Table 7, CIFAR10", rows=PAPER, metric=METRIC),
    arms=base.arms() | dict(fedmr_intra=INTRA),
    measurements=dict(unevenness="eigenvalue_variance", ranks="feature_ranks"),
)
