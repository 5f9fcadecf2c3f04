"""Figure 1 (b to d) of FedDecorr (TPAMI 2023): features of ResNet20 on CIFAR10, projected to the unit sphere.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure1.py:offline --workdir=runs/figure1

* ``:full``: ResNet20 on CIFAR10. ``docs/data.md`` says how to get the data.
* ``:offline``: a narrower ResNet20 on 8x8 digits.
* ``:smoke``: two rounds of it, narrower still.

The report has the sphere for each setting, from features that are saved every tenth round and after the last. Not
known: how 64 features become three (ours: principal axes), and which alphas and methods are shown; ours are 0.05 and no
skew, FedAvg with and without FedDecorr. A linear probe next to it distinguishes collapsed features from a biased
classifier.
"""

from experiments.configs.feddecorr import base

ALPHAS = (0.05, "iid")  # our choice

get_config = base.grid(
    base.skews(ALPHAS),
    "cifar10",
    smoke=["digits-0.05"],
    measurements=dict(features="features", probe="linear_probe"),
    measure_every=10,
    full=dict(network=dict(name="resnet20")),  # paper
    offline=dict(network=dict(name="resnet20", width_multiplier=0.5)),
    smoke_network=dict(name="resnet20", width_multiplier=0.25),
)
