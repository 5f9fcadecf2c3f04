"""Table 2 of FedUV (Son et al., CVPR 2024): five methods where a part of the clients takes part in a round.

    python experiments/launch.py --config=experiments/configs/feduv/table2.py:offline --workdir=runs/uv2

* ``:full``: STL10 with alpha 0.01 and Office-Home. ``docs/data.md`` says how to get the data.
* ``:offline``: the same shares on digits and on four domains of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of the smallest share of each.

Not known to us: the numbers of FedAvg and FedProx at a part of the clients.
"""

from ml_collections import ConfigDict

from experiments.config.published import by_setting, chosen, make_small
from experiments.configs.feduv import base

SHARES = dict(skew=(0.1, 0.5, 1.0), domains=(0.25, 0.5, 1.0))  # paper
PAPER = {  # percent: STL10 with each share, Office-Home with each share
    "moon": (20.5, 23.6, 26.0, 40.3, 40.5, 41.9),
    "freeze": (21.5, 23.7, 23.7, 37.6, 39.5, 41.3),
    "feduv": (24.9, 30.0, 30.4, 41.7, 44.8, 45.4),
}


def get_config(arg: str = "offline") -> ConfigDict:
    return chosen("table2.py", arg, dict(full=_full, offline=_offline, smoke=_smoke))


def _settings(skew, domains, sets):
    shares = {skew: SHARES["skew"], domains: SHARES["domains"]}
    cells = [(name, share) for name in shares for share in shares[name]]
    return {f"{name}-{share}": sets[name] | dict(participation=share) for name, share in cells}


def _full(config):
    base.full(config, base.arms())
    sets = base.data_sets(base.arms(), 0.01)
    sets["officehome"]["rounds"] = 60  # paper: of this table
    config.settings = settings = _settings("stl10", "officehome", sets)
    config.paper = dict(source=f"{base.SOURCE}, Table 2", comparable=True, values=by_setting(PAPER, settings))


def _offline(config):
    base.offline(config, base.arms())
    config.settings = settings = _settings("digits", "domains", base.offline_sets(base.arms(), 0.01))
    values = by_setting(PAPER, settings)
    config.paper = dict(source=f"{base.SOURCE}, Table 2", comparable=False, why=base.OFFLINE_WHY, values=values)


def _smoke(config):
    _offline(config)
    make_small(config, ["digits-0.1", "domains-0.25"], name="small_cnn", channels=(16,), projector="feduv")
