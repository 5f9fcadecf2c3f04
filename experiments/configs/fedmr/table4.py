"""Table 4 of FedMR (Fan et al., TMLR 2023): rounds until FedAvg's best accuracy on CIFAR100, with up to 100 clients.

    python experiments/launch.py --config=experiments/configs/fedmr/table4.py:offline --workdir=runs/mr4

* ``:full``: the runs of table 2 on CIFAR100, evaluated after every round. ``docs/data.md``: the data.
* ``:offline``: the same splits of a hundred classes of glyphs, with a small network.
* ``:smoke``: two rounds of one split.

The target is the best accuracy of FedAvg in the same setting, here with the same seed; FedAvg stands with all its
rounds. ``fedjax-collapse report runs/mr4 --format=md,tex`` writes the table with the speed-ups, too.
"""

from ml_collections import ConfigDict

from experiments.config.plain_values import plain
from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.fedmr import base, table2
from experiments.results.metrics import TO_TARGET

PAPER = {  # rounds: P10C10, P50C10, P100C10
    "fedavg": (400, 400, 400),
    "fedprox": (352, 370, 384),
    "fedproc": (357, 381, 389),
    "fednova": (290, 385, 382),
    "moon": (332, 373, 395),
    "feddyn": (178, 366, 384),
    "feddc": (275, 393, 387),
    "fedmr": (149, 293, 368),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table4.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    config.evaluate_every = 1
    config.settings = {name: s for name, s in table2.many_clients().items() if name.startswith("cifar100")}
    _compare(config, base.WHY_FULL)


def _offline(config):
    table2.offline(config, base.arms())
    config.evaluate_every = 1
    for name in table2.OF_TEN:
        del config.settings[f"glyphs10-{name}"]
    _compare(config, table2.WHY)


def _compare(config, why):
    values = by_setting(PAPER, plain(config)["settings"])
    source = f"{base.SOURCE}, Table 4"
    config.paper = dict(source=source, comparable=False, why=why, metric=TO_TARGET.name, target="fedavg", values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["glyphs100-P10C10"])
