"""Table 3 of FedDecorr's ICLR version (2023): FedAvg with and without it on Tiny-ImageNet, with 10 to 100 clients.

    python experiments/launch.py --config=experiments/configs/feddecorr/iclr_table3.py:offline --workdir=runs/iclr3

* ``:full``: the published study, 90 runs of MobileNetV2; ``table4.py`` (TPAMI) has two of its three alphas.
* ``:offline``, ``:smoke``: as in ``table4.py``, with one more alpha.
"""

from experiments.configs.feddecorr import table4

ALPHAS = (0.05, 0.1, 0.5)  # paper
OF_HALF = {  # percent, alpha 0.5, 10 to 100 clients
    "fedavg": (46.92, 43.64, 37.22, 34.89, 30.21),
    "fedavg_decorr": (50.01, 46.17, 44.38, 42.34, 38.65),
}
PAPER = {arm: (*row[10:], *OF_HALF[arm]) for arm, row in table4.PAPER.items()}

SMOKE = ["glyphs-0.5-10", "glyphs-0.5-50"]

TABLE = dict(source="Shi et al., ICLR 2023, Table 3", rows=PAPER)
get_config = table4.on_clients(["tiny"], ALPHAS, TABLE, SMOKE)
