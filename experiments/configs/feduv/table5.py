"""Table 5 of FedUV (Son et al., CVPR 2024): how long a round takes with five methods on six data sets.

    python experiments/launch.py --config=experiments/configs/feduv/table5.py:offline --workdir=runs/uv5

* ``:full``: the published settings for five rounds. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits and glyphs, with a small network.
* ``:smoke``: two rounds of digits.

The table is of seconds of training per round (median over rounds, without those that compile). Below the figure of
times are evaluation and memory. Not known: alpha (ours 0.01), and the paper's device.
"""

from ml_collections import ConfigDict

from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.feduv import base
from experiments.results.metrics import SECONDS

PAPER = {  # seconds per round: STL10, CIFAR100, Tiny-ImageNet, PACS, HAM10000, Office-Home
    "fedavg": (26, 57, 728, 47, 131, 359),
    "fedprox": (27, 67, 823, 48, 135, 371),
    "moon": (37, 88, 1186, 70, 145, 493),
    "freeze": (26, 56, 728, 47, 129, 351),
    "feduv": (27, 58, 755, 48, 132, 362),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table5.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    sets = base.data_sets(base.arms(), 0.01)
    config.settings = settings = {name: setting | dict(rounds=5) for name, setting in sets.items()}  # our choice
    _time(config)
    _compare(config, "Table 5", "times of other devices and other programs", by_setting(PAPER, settings))


def _offline(config):
    base.offline(config, base.arms())
    config.rounds = 10
    config.settings = settings = base.offline_sets(base.arms(), 0.01)
    _time(config)
    rows = {arm: (*row[:2], row[3]) for arm, row in PAPER.items()}
    _compare(config, "Table 5, STL10, CIFAR100, PACS", base.OFFLINE_WHY, by_setting(rows, settings))


def _time(config):
    """Each run alone, one of each."""
    config.seeds, config.evaluate_every, config.engine.runs = (0,), 1, "separate"


def _compare(config, table, why, values):
    config.paper = dict(source=f"{base.SOURCE}, {table}", comparable=False, why=why, metric=SECONDS.name, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits"], name="small_cnn", channels=(16,), projector="feduv")
