"""Table 2 of FedUV (Son et al., CVPR 2024): five methods where a part of the clients takes part in a round.

    python experiments/launch.py --config=experiments/configs/feduv/table2.py:offline --workdir=runs/uv2

* ``:full``: STL10 with alpha 0.01 and Office-Home. ``docs/data.md`` says how to get the data.
* ``:offline``: the same shares on digits and on four domains of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of the smallest share of each.

The paper's first two rows have no names in our copy: they are FedAvg and FedProx by the order of tables 1 and 5, and
three of their six columns are legible in this table or in table 1. Office-Home's rounds contradict each other: section
4.1 says 40, section 4.2 says 60, for this table; ours has 60, but the column of all clients is table 1's, of 40 rounds,
to the last digit.
"""

from experiments.configs.feduv import base
from fedjax_collapse.config.published import crossed

SHARES = dict(skew=(0.1, 0.5, 1.0), domains=(0.25, 0.5, 1.0))  # paper
PAPER = {  # percent: STL10 with each share, Office-Home with each share; of all clients: table 1's
    "fedavg": (17.4, None, 27.6, None, None, 42.2),
    "fedprox": (19.3, None, 26.5, None, None, 41.9),
    "moon": (20.5, 23.6, 26.0, 40.3, 40.5, 41.9),
    "freeze": (21.5, 23.7, 23.7, 37.6, 39.5, 41.3),
    "feduv": (24.9, 30.0, 30.4, 41.7, 44.8, 45.4),
}
SPREADS = {  # standard deviation over three runs, in the same places
    "fedavg": (3.4, None, 1.6, None, None, 1.1),
    "fedprox": (2.9, None, 1.5, None, None, 0.6),
    "moon": (3.7, 1.7, 1.3, 2.7, 1.6, 0.4),
    "freeze": (3.6, 1.6, 1.5, 3.9, 1.1, 1.8),
    "feduv": (3.1, 1.1, 1.4, 2.4, 1.3, 1.0),
}


def _settings(skewed, domains):
    shares = {kind: {f"{share}": dict(participation=share) for share in SHARES[kind]} for kind in SHARES}
    return crossed(skewed, shares["skew"]) | crossed(domains, shares["domains"])


OFFICEHOME = base.data_sets("officehome")["officehome"] | dict(rounds=60)  # paper: section 4.2

get_config = base.study(
    arms=base.arms(),
    settings=_settings(base.data_sets("stl10"), dict(officehome=OFFICEHOME)),
    offline_settings=_settings(base.offline_sets("digits"), base.offline_sets("domains")),
    smoke=["digits-0.1", "domains-0.25"],
    **base.papers("Table 2", PAPER, SPREADS),
)
