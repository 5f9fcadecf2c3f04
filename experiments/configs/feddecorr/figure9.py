"""Figure 9 of FedDecorr (TPAMI 2023): FedAvg with it at five strengths, and without, on CIFAR10 and Tiny-ImageNet.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure9.py:offline --workdir=runs/figure9

* ``:full``: the published study, 72 runs of MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one alpha.

The report draws accuracy against the strength. Its numbers in the paper are not known to us, as they are in a figure.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.feddecorr import base

ALPHAS = (0.05, 0.1)  # paper
STRENGTHS = (0.01, 0.05, 0.1, 0.2, 0.3)  # paper; its 0 is the arm fedavg


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure9.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _full(config):
    base.full(config, base.with_and_without())
    config.sweep = {"methods.feddecorr.strength": STRENGTHS}
    of_data = base.data_sets(())
    cells = [(name, alpha) for name in ("cifar10", "tiny") for alpha in ALPHAS]
    config.settings = {
        f"{name}-{alpha}": of_data[name] | dict(partition=base.partition(alpha)) for name, alpha in cells
    }


def _offline(config):
    base.offline(config, base.with_and_without())
    config.sweep = {"methods.feddecorr.strength": STRENGTHS}
    config.settings = {f"digits-{alpha}": dict(partition=base.partition(alpha)) for alpha in ALPHAS}


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.1"])
