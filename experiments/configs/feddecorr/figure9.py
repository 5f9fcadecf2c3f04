"""Figure 9 of FedDecorr (TPAMI 2023): FedAvg with it at five strengths, and without, on CIFAR10 and Tiny-ImageNet.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure9.py:offline --workdir=runs/figure9

* ``:full``: the published study, 72 runs of MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one alpha.

The report draws accuracy against the strength. Its numbers in the paper are not known to us, as they are in a figure,
but for its axes: 66 to 72 and 77 to 81 % on CIFAR10 (alpha 0.05, 0.1), and, by their size, 36 to 40 and 40 to 44 % on
Tiny-ImageNet. The grids of the other methods' strengths: ``tuning.py``.
"""

from experiments.configs.feddecorr import base

ALPHAS = (0.05, 0.1)  # paper
STRENGTHS = (0.01, 0.05, 0.1, 0.2, 0.3)  # paper; its 0 is the arm fedavg

SWEEP = {"methods.feddecorr.strength": STRENGTHS}

get_config = base.grid(base.skews(ALPHAS), "cifar10", "tiny", smoke=["digits-0.1"], sweep=SWEEP)
