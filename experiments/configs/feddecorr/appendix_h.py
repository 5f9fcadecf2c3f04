"""Appendix H of FedDecorr's ICLR version (2023), figure 11: its loss of every client in the epochs of a round.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_h.py:offline --workdir=runs/appendix_h

* ``:full``: FedAvg with it on CIFAR10, MobileNetV2, ten clients, alpha 0.05. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report shows the losses of the last round, "Losses within a round"; those of every round are in ``clients.npz``. Not
known: the number of clients, alpha and the round; ours are a guess.
"""

from experiments.configs.feddecorr import base

get_config = base.grid(
    base.skews([0.05]),
    "cifar10",
    smoke=["digits-0.05"],
    full=dict(training=dict(logged_epochs=10)),
    offline=dict(training=dict(logged_epochs=5)),
)
