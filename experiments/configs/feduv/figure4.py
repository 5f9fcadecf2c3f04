"""Figure 4 of FedUV (Son et al., CVPR 2024): features of one class of STL10 at several clients, by t-SNE.

    python experiments/launch.py --config=experiments/configs/feduv/figure4.py:offline --workdir=runs/uv_f4

* ``:full``: FedAvg and FedUV on STL10 with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report has the t-SNE, of all local models, from features that are saved every tenth round and after the last. CKA
and a linear probe compare them in numbers. Not known: which clients, and alpha.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feduv import base


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure4.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _watched(config):
    config.watch, config.measure_every = "all", 10
    config.measurements = dict(features="features", cka="cka", probe="linear_probe")


def _full(config):
    arms = base.arms("fedavg", "feduv")
    base.full(config, arms)
    config.settings = dict(stl10=base.data_sets(arms, 0.01)["stl10"])
    _watched(config)


def _offline(config):
    arms = base.arms("fedavg", "feduv")
    base.offline(config, arms)
    config.settings = dict(digits=base.offline_sets(arms, 0.01)["digits"])
    _watched(config)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits"], name="small_cnn", channels=(16,), projector="feduv")
