"""Appendices D and E of FedDecorr's ICLR version (2023): spectra for FedAvgM, FedProx and MOON on CIFAR100.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_methods.py:offline --workdir=runs/d_e

* ``:full``: the three methods at four skews, MobileNetV2, all ten local models. ``docs/data.md``: the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one skew.

Other networks and data sets of these appendices: ``appendix_networks.py``. Not known: which of both is which appendix.
"""

from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS

get_config = base.study(
    __file__,
    arms=base.arms("fedavgm", "fedprox", "moon"),  # paper
    watch="all",  # paper
    full=dict(settings=base.settings(base.skews(ALPHAS), "cifar100")),
    offline=dict(settings=base.settings(base.skews(ALPHAS), "digits")),
    smoke=["digits-0.05"],
)
