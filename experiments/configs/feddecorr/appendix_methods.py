"""Appendix D.1 of FedDecorr's ICLR version (2023), figure 7: spectra of global models of FedAvgM, FedProx and MOON.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_methods.py:offline --workdir=runs/d1

* ``:full``: the three methods at four skews of CIFAR100, MobileNetV2. ``docs/data.md``: the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one skew.

Other networks and data sets, D.2 and D.3: ``appendix_networks.py``. Local models, E: ``figures2_7.py``. The appendix
follows the main text, so data, network and skews are taken from there.
"""

from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS

ARMS = base.arms("fedavgm", "fedprox", "moon")  # paper

get_config = base.grid(base.skews(ALPHAS), "cifar100", smoke=["digits-0.05"], arms=ARMS)
