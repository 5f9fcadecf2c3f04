"""The grids of FedDecorr (TPAMI 2023, section 5.1) from which the strengths of FedProx, MOON and FedAvgM were chosen.

    python experiments/launch.py --config=experiments/configs/feddecorr/tuning.py:offline --workdir=runs/tuning

* ``:full``: the three methods on CIFAR10 at two skews, MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one skew.

The chosen values, 1e-3, 1 and 0.5, are those of all other tables. Not known: on which data they were chosen (ours are
those of figure 9, which is FedDecorr's own grid). A tenth of the training data can be held out for the choice, which
then does not depend on the test set: ``--config.data.validation_fraction=0.1``, our addition.
"""

from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figure9 import ALPHAS

GRIDS = {  # paper
    "methods.fedprox.strength": (1e-4, 1e-3, 1e-2, 1e-1),
    "methods.moon.strength": (0.1, 1.0, 5.0, 10.0),
    "server.optimizer.decay": (0.1, 0.5, 0.9),
}

ARMS = base.arms("fedprox", "moon", "fedavgm")

get_config = base.grid(base.skews(ALPHAS), "cifar10", smoke=["digits-0.1"], arms=ARMS, sweep=GRIDS)
