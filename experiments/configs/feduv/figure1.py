"""Figure 1 of FedUV (Son et al., CVPR 2024): singular values of the classifier over rounds, on CIFAR100.

    python experiments/launch.py --config=experiments/configs/feduv/figure1.py:offline --workdir=runs/uv_f1

* ``:full``: ResNet18, FedAvg, without skew and with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on a hundred classes of glyphs, with a small network.
* ``:smoke``: two rounds of it.

The report draws those of a few rounds; of each evaluation they are in ``measurements.npz`` of each run
(``head_spectrum``, docs/analysis.md). Not known: the alpha of the figure.
"""

from ml_collections import ConfigDict

from experiments.config.published import GLYPHS_100, chosen, make_small
from experiments.configs.feduv import base

PARTITIONS = {"iid": dict(name="iid"), "0.01": base.label_skew(0.01)}  # our choice


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure1.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _arms():
    return base.arms("fedavg", "freeze", "feduv")


def _full(config):
    base.full(config, _arms())
    config.measurements = dict(head="head_spectrum")
    cifar100 = base.data_sets(_arms(), 0.01)["cifar100"]
    config.settings = {f"cifar100-{name}": cifar100 | dict(partition=skew) for name, skew in PARTITIONS.items()}


def _offline(config):
    base.offline(config, _arms())
    config.measurements, config.data = dict(head="head_spectrum"), GLYPHS_100
    settings = {f"glyphs-{name}": dict(partition=skew) for name, skew in PARTITIONS.items()}
    config.settings = {name: base.with_variance(setting, 100, _arms()) for name, setting in settings.items()}


def _smoke(config):
    _offline(config)
    make_small(config, ["glyphs-iid"], name="small_cnn", channels=(16,), projector="feduv")
