"""Table 5 of FedDecorr (TPAMI 2023; ICLR 2023, table 4): FedAvg with and without it, with 1 to 20 local epochs.

    python experiments/launch.py --config=experiments/configs/feddecorr/table5.py:offline --workdir=runs/table5

* ``:full``: the published study on CIFAR100 and Tiny-ImageNet, 96 runs of MobileNetV2. ``docs/data.md``: the data.
* ``:offline``: the same on 8x8 digits, with a small network; not comparable.
* ``:smoke``: two rounds of 1 and of 5 epochs.
"""

from experiments.configs.feddecorr import base
from fedjax_collapse.config.published import crossed

EPOCHS = (1, 5, 10, 20)  # paper
ALPHAS = (0.05, 0.1)  # paper
PAPER = {  # percent: CIFAR100 at both alphas, Tiny-ImageNet at both, each with EPOCHS; 10 are table 1's
    "fedavg": (
        *(50.67, 59.57, 59.87, 58.50, 55.98, 65.02, 66.46, 66.37),
        *(32.31, 36.02, 35.02, 31.23, 34.88, 40.75, 39.30, 37.23),
    ),
    "fedavg_decorr": (
        *(53.18, 61.42, 61.53, 60.65, 57.02, 65.98, 67.12, 66.86),
        *(36.49, 41.68, 40.29, 35.44, 38.99, 44.77, 43.86, 42.04),
    ),
}

CELLS = crossed(base.skews(ALPHAS), {f"{epochs}": dict(training=dict(epochs=epochs)) for epochs in EPOCHS})
TABLE, SMOKE = dict(source=f"{base.SOURCE}, Table 5", rows=PAPER), ["digits-0.1-1", "digits-0.1-5"]

get_config = base.grid(CELLS, "cifar100", "tiny", smoke=SMOKE, paper=TABLE)
