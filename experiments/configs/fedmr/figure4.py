"""Figure 4 of FedMR (Fan et al., TMLR 2023): memory, local time and accuracy of all methods, and of its Lite variants.

    python experiments/launch.py --config=experiments/configs/fedmr/figure4.py:offline --workdir=runs/mr_f4

* ``:full``: the settings of table 1. ``docs/data.md`` says how to get the data.
* ``:offline``: the five splits of 8x8 digits, with a small network.
* ``:smoke``: two rounds of one split.

Lite-10 and Lite-50: so many rows of a batch see the second term, again in every batch, which the paper leaves open.
The report has seconds and memory of a round below its figure of times; what a client keeps is printed by ``python
fedjax-collapse communication`` with this config. The figure's numbers are not known to us.
"""

from ml_collections import ConfigDict

from experiments.config.published import chosen, make_small
from experiments.configs.fedmr import base


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("figure4.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _arms():
    lite = {f"lite{rows}": dict(methods=dict(fedmr=base.FEDMR | dict(lite=rows))) for rows in (10, 50)}  # paper
    return base.arms() | lite


def _full(config):
    base.full(config, _arms())
    config.engine.runs = "separate"  # to time each
    config.settings = base.full_settings(base.splits_of_all())


def _offline(config):
    base.offline(config, _arms())
    config.engine.runs = "separate"
    config.rounds, config.seeds, config.training.batch_size = 20, (0,), 64  # of which Lite takes 10 or 50
    config.settings = {f"digits-{name}": base.split(*cut, 10) for name, cut in base.SPLITS.items()}


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-P10C3"])
