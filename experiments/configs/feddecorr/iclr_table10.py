"""Table 10 of FedDecorr's ICLR version (2023): FedAvg with and without it on CIFAR10, with few classes per client.

    python experiments/launch.py --config=experiments/configs/feddecorr/iclr_table10.py:offline --workdir=runs/iclr10

* ``:full``: the published study, 12 runs of MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network; not comparable.
* ``:smoke``: two rounds of one of them.

Clients have a fixed number of classes, after McMahan et al. (2017). The number of clients (ours 10) and both numbers of
classes are not legible in our copy: ours, 2 and 3, are a guess by the accuracies of table 2 (TPAMI). No spreads are
printed. ``base.pathological`` says how ours gives classes out, and how to choose McMahan's shards.
"""

from experiments.configs.feddecorr import base

CLASSES = base.pathological((2, 3))  # our guess
PAPER = {"fedavg": (45.61, 67.53), "fedavg_decorr": (47.63, 74.51)}  # percent
TABLE = dict(source="Shi et al., ICLR 2023, Table 10", rows=PAPER)

get_config = base.grid(CLASSES, "cifar10", smoke=["digits-2"], paper=TABLE)
