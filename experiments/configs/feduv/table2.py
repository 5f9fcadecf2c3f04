"""Table 2 of FedUV (Son et al., CVPR 2024): five methods where a part of the clients takes part in a round.

    python experiments/launch.py --config=experiments/configs/feduv/table2.py:offline --workdir=runs/uv2

* ``:full``: STL10 with alpha 0.01 and Office-Home. ``docs/data.md`` says how to get the data.
* ``:offline``: the same shares on digits and on four domains of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of the smallest share of each.

Not known to us: the numbers of FedAvg and FedProx at a part of the clients.
"""

from experiments.config.published import compared, crossed
from experiments.configs.feduv import base

SHARES = dict(skew=(0.1, 0.5, 1.0), domains=(0.25, 0.5, 1.0))  # paper
PAPER = {  # percent: STL10 with each share, Office-Home with each share
    "moon": (20.5, 23.6, 26.0, 40.3, 40.5, 41.9),
    "freeze": (21.5, 23.7, 23.7, 37.6, 39.5, 41.3),
    "feduv": (24.9, 30.0, 30.4, 41.7, 44.8, 45.4),
}
SOURCE = f"{base.SOURCE}, Table 2"


def _settings(skewed, domains):
    shares = {kind: {f"{share}": dict(participation=share) for share in SHARES[kind]} for kind in SHARES}
    return crossed(skewed, shares["skew"]) | crossed(domains, shares["domains"])


OFFICEHOME = base.data_sets("officehome")["officehome"] | dict(rounds=60)  # paper: of this table

get_config = base.study(
    __file__,
    arms=base.arms(),
    full=dict(settings=_settings(base.data_sets("stl10"), dict(officehome=OFFICEHOME)), paper=compared(SOURCE, PAPER)),
    offline=dict(
        settings=_settings(base.offline_sets("digits"), base.offline_sets("domains")),
        paper=compared(SOURCE, PAPER, why=base.OFFLINE_WHY),
    ),
    smoke=["digits-0.1", "domains-0.25"],
)
