"""Table 3 of FedUV (Son et al., CVPR 2024): five methods with 10, 20 and 40 local epochs.

    python experiments/launch.py --config=experiments/configs/feduv/table3.py:offline --workdir=runs/uv3

* ``:full``: STL10 with alpha 0.01 and Office-Home. ``docs/data.md`` says how to get the data.
* ``:offline``: 3, 6 and 12 epochs on digits and on four domains of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds of the fewest epochs of each.

Not known to us: the other methods' numbers of 20 and 40 epochs; those of 10 are table 1's. In words, 20 mostly help and
40 lower all, MOON and FedProx little.
"""

from experiments.configs.feduv import base, table1
from fedjax_collapse.config.published import crossed

EPOCHS = (10, 20, 40)  # paper


def _of_ten(rows):
    return {arm: (row[0], None, None, row[-1], None, None) for arm, row in rows.items()}


# percent and its standard deviation over three runs: STL10 with each number, Office-Home with each
PAPER = _of_ten(table1.PAPER) | {"feduv": (30.4, 31.5, 25.9, 45.4, 46.1, 35.9)}
SPREADS = _of_ten(table1.SPREADS) | {"feduv": (1.4, 1.2, 0.9, 1.0, 0.7, 0.8)}


def _epochs(numbers):
    return {f"{number}": dict(training=dict(epochs=number)) for number in numbers}


get_config = base.study(
    arms=base.arms(),
    settings=crossed(base.data_sets("stl10", "officehome"), _epochs(EPOCHS)),
    offline_settings=crossed(base.offline_sets("digits", "domains"), _epochs((3, 6, 12))),
    offline=dict(rounds=10),
    smoke=["digits-3", "domains-3"],
    **base.papers("Table 3", PAPER, SPREADS),
)
