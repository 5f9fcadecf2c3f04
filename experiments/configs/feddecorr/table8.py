"""Table 8 of FedDecorr (TPAMI 2023; ICLR 2023, table 7): FedAvg with and without it, with three networks on CIFAR10.

    python experiments/launch.py --config=experiments/configs/feddecorr/table8.py:offline --workdir=runs/table8

* ``:full``: the published study, 36 runs. ``docs/data.md`` says how to get the data.
* ``:offline``: the same networks, narrower, on 8x8 digits; not comparable.
* ``:smoke``: two rounds of them, narrower still.
"""

from ml_collections import ConfigDict

from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.feddecorr import base

NETWORKS = ("mobilenet_v2", "resnet18", "resnet32")  # paper
ALPHAS = (0.05, 0.1)  # paper; the ICLR version has 0.05 alone
PAPER = {  # percent, NETWORKS at the first alpha, then at the second
    "fedavg": (64.85, 71.51, 65.76, 76.28, 82.32, 73.22),
    "fedavg_decorr": (73.06, 76.54, 67.21, 80.60, 83.59, 74.75),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table8.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _settings(name, common):
    return {
        f"{name}-{alpha}-{network}": common | dict(partition=base.partition(alpha), network=dict(name=network))
        for alpha in ALPHAS
        for network in NETWORKS
    }


def _full(config):
    base.full(config, base.with_and_without())
    config.settings = settings = _settings("cifar10", base.data_sets(())["cifar10"])
    config.paper = dict(source=f"{base.SOURCE}, Table 8", comparable=True, values=by_setting(PAPER, settings))


def _offline(config):
    _narrow(config, mobilenet_v2=0.25, resnet18=0.25, resnet32=1.0)
    config.rounds, config.training.epochs = 15, 2
    why = base.WHY.format("CIFAR10").replace("a small network, not", "narrower networks, not").split(" and Mobile")[0]
    values = by_setting(PAPER, _settings("digits", {}))
    config.paper = dict(source=f"{base.SOURCE}, Table 8", comparable=False, why=why, values=values)


def _narrow(config, **widths):
    base.offline(config, base.with_and_without())
    config.settings = settings = _settings("digits", {})
    for setting in settings:
        network = config.settings[setting].network
        network.width_multiplier = widths[network.name]


def _smoke(config):
    _narrow(config, mobilenet_v2=0.1, resnet18=0.05, resnet32=0.25)
    make_small(config, [f"digits-0.1-{network}" for network in NETWORKS])
