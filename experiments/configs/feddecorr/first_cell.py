"""The first numbers of FedDecorr's table 1 (TPAMI 2023): FedAvg with and without it on CIFAR10, alpha 0.05.

    python experiments/launch.py --config=feddecorr/first_cell:full --config.data.folder=FOLDER --workdir=runs/first
    python experiments/launch.py --config=experiments/configs/feddecorr/first_cell.py:offline --workdir=runs/offline

* ``:full``: six runs of MobileNetV2, of those of ``table1.py``. FOLDER has CIFAR10 as torchvision, TFDS or Hugging Face
  leave it (``docs/data.md``). After the last run, and in the report, the paper's numbers stand beside ours, and whether
  the intervals of one standard deviation overlap. It stops and resumes like every study: start it again.
* ``:offline``: the same on 8x8 digits, with a small network; not comparable.
* ``:smoke``: two rounds of it.
"""

from experiments.configs.feddecorr import base, table1

FIRST = base.skews(base.ALPHAS[:1])
PAPER, SPREADS = ({arm: rows[arm][:1] for arm in base.WITH_AND_WITHOUT} for rows in (table1.PAPER, table1.SPREADS))
SOURCE = f"{base.SOURCE}, Table 1"

get_config = base.grid(
    FIRST,
    "cifar10",
    smoke=["digits-0.05"],
    paper=dict(source=SOURCE, rows=PAPER, spreads=SPREADS),
    offline_paper=dict(source=f"{SOURCE}, CIFAR10", why=base.WHY.format("CIFAR10")),
)
