"""Table 4 of FedMR (Fan et al., TMLR 2023): rounds until FedAvg's best accuracy on CIFAR100, with up to 100 clients.

    python experiments/launch.py --config=experiments/configs/fedmr/table4.py:offline --workdir=runs/mr4

* ``:full``: the runs of table 2 on CIFAR100, evaluated after every round. ``docs/data.md``: the data.
* ``:offline``: the same splits of a hundred classes of glyphs, with a small network.
* ``:smoke``: two rounds of one split.

The target is the best accuracy of FedAvg in the same setting, here with the same seed. Of the finished runs

    python experiments/report.py runs/mr4 --target=fedavg

prints the table, and writes it into ``export/results.md`` and ``.tex``. The paper's, P10C10, P50C10, P100C10: FedAvg
400, 400, 400 (by convention); FedProx 352, 370, 384; FedProc 357, 381, 389; FedNova 290, 385, 382; MOON 332, 373, 395;
FedDyn 178, 366, 384; FedDC 275, 393, 387; FedMR 149, 293, 368.
"""

from ml_collections import ConfigDict

from experiments.configs.fedmr import base, table2
from experiments.published import chosen, make_small


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table4.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    config.evaluate_every = 1
    config.settings = {name: s for name, s in table2.many_clients().items() if name.startswith("cifar100")}


def _offline(config):
    table2.offline(config, base.arms())
    config.evaluate_every = 1
    for name in table2.OF_TEN:
        del config.settings[f"glyphs10-{name}"]


def _smoke(config):
    _offline(config)
    make_small(config, ["glyphs100-P10C10"])
