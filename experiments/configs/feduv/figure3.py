"""Figure 3 of FedUV (Son et al., CVPR 2024): the training loss over rounds.

    python experiments/launch.py --config=experiments/configs/feduv/figure3.py:offline --workdir=runs/uv_f3

* ``:full``: five methods on STL10 with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report draws it (Training loss), from ``train/task_loss`` in ``metrics.jsonl`` of each run. Not known: data set,
alpha and methods of the figure.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feduv import base


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure3.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.arms())
    config.settings = dict(stl10=base.data_sets(base.arms(), 0.01)["stl10"])
    config.evaluate_every = 1


def _offline(config):
    base.offline(config, base.arms())
    config.settings = dict(digits=base.offline_sets(base.arms(), 0.01)["digits"])
    config.evaluate_every = 1


def _smoke(config):
    _offline(config)
    make_small(config, ["digits"], name="small_cnn", channels=(16,), projector="feduv")
