"""Figures 2 to 7 of FedDecorr (TPAMI 2023): spectra of local and global models on CIFAR100, and R.

    python experiments/launch.py --config=experiments/configs/feddecorr/figures2_7.py:offline --workdir=runs/figures2_7

* ``:full``: FedAvg with and without FedDecorr at four skews, MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds at two skews.

The report has spectra, significant dimensions, effective rank and R. The paper shows FedDecorr at 0.01 and 0.05 alone;
here it is trained at all four. Not known: the base of the logarithm, and over how many singular values R goes (100 are
plotted); ours are natural, and all.
"""

from experiments.configs.feddecorr import base

ALPHAS = (0.01, 0.05, 0.25, "iid")  # paper

get_config = base.study(
    __file__,
    arms=base.WITH_AND_WITHOUT,
    full=dict(
        settings=base.settings(base.skews(ALPHAS), "cifar100"),
        watch="0",  # released code: the model of the first client
    ),
    offline=dict(
        settings=base.settings(base.skews(ALPHAS), "digits"),
        watch="all",  # our choice: R as mean and range over clients
    ),
    smoke=["digits-0.05", "digits-iid"],
)
