"""Table 6 of FedDecorr (TPAMI 2023; ICLR 2023, table 5): how long a round takes with four methods.

    python experiments/launch.py --config=experiments/configs/feddecorr/table6.py:offline --workdir=runs/table6

* ``:full``: the published setting, MobileNetV2, 10 clients, alpha 0.5, for five rounds. ``docs/data.md``: the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The table is of seconds of training per round (median over rounds, without those that compile). Below the figure of
times are evaluation and memory. The paper's are of one V100. The released code also evaluates training and
test set before and after local training; whether its times hold that is not known.
"""

from ml_collections import ConfigDict

from experiments.config.plain_values import plain
from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.feddecorr import base
from experiments.results.metrics import SECONDS

PAPER = {  # minutes per round: CIFAR10, CIFAR100, Tiny-ImageNet
    "fedavg": (6.7, 6.9, 25.4),
    "fedprox": (12.1, 12.3, 33.2),
    "moon": (12.2, 12.7, 38.1),
    "fedavg_decorr": (6.9, 7.1, 25.7),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table6.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _arms():
    return base.arms("fedavg", "fedprox", "moon", "fedavg_decorr")


def _full(config):
    base.full(config, _arms())
    config.seeds = (0,)  # our choice
    skew = dict(partition=base.partition(0.5), rounds=5)  # paper: alpha; rounds are our choice
    config.settings = {name: common | skew for name, common in base.data_sets(_arms()).items()}
    _time(config)
    _compare(config, "Table 6", "times of another device and another program")


def _offline(config):
    base.offline(config, _arms())
    config.seeds, config.rounds = (0,), 10
    config.settings = dict(digits=dict(partition=base.partition(0.5)))
    _time(config)
    _compare(config, "Table 6, CIFAR10", base.WHY.format("CIFAR10"))


def _time(config):
    """Each run alone."""
    config.engine.runs = "separate"
    config.evaluate_every = 1


def _compare(config, table, why):
    """In seconds, of the first data sets of the paper."""
    seconds = {arm: [60 * minutes for minutes in row] for arm, row in PAPER.items()}
    source, values = f"{base.SOURCE}, {table}", by_setting(seconds, plain(config)["settings"])
    config.paper = dict(source=source, comparable=False, why=why, metric=SECONDS.name, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits"])
