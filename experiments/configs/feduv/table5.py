"""Table 5 of FedUV (Son et al., CVPR 2024): how long a round takes with five methods on six data sets.

    python experiments/launch.py --config=experiments/configs/feduv/table5.py:offline --workdir=runs/uv5

* ``:full``: the published settings for five rounds. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits and glyphs, with a small network.
* ``:smoke``: two rounds of digits.

The report has seconds per round below its figure of times. The paper's, seconds per round for
STL10, CIFAR100, Tiny-ImageNet, PACS, HAM10000, Office-Home: FedAvg 26, 57, 728, 47, 131, 359; FedProx 27, 67, 823, 48,
135, 371; MOON 37, 88, 1186, 70, 145, 493; Freeze 26, 56, 728, 47, 129, 351; FedUV 27, 58, 755, 48, 132, 362. Not known:
alpha (ours 0.01).
"""

from ml_collections import ConfigDict

from experiments.configs.feduv import base
from experiments.published import chosen, make_small


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table5.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    sets = base.data_sets(base.arms(), 0.01)
    config.settings = {name: setting | dict(rounds=5) for name, setting in sets.items()}  # our choice
    _time(config)


def _offline(config):
    base.offline(config, base.arms())
    config.rounds = 10
    config.settings = base.offline_sets(base.arms(), 0.01)
    _time(config)


def _time(config):
    """Each run alone, one of each."""
    config.seeds, config.evaluate_every, config.engine.runs = (0,), 1, "separate"


def _smoke(config):
    _offline(config)
    make_small(config, ["digits"], name="small_cnn", channels=(16,), projector="feduv")
