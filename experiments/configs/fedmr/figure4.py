"""Figure 4 of FedMR (Fan et al., TMLR 2023): memory, local time and accuracy of all methods, and of its Lite variants.

    python experiments/launch.py --config=experiments/configs/fedmr/figure4.py:offline --workdir=runs/mr_f4

* ``:full``: the settings of table 1. ``docs/data.md`` says how to get the data.
* ``:offline``: the five splits of 8x8 digits, with a small network.
* ``:smoke``: two rounds of one split.

Lite-10 and Lite-50: so many rows of a batch see the second term, again in every batch, which the paper leaves open.
The report has seconds and memory of a round below its figure of times; what a client keeps is printed by ``python
fedjax-collapse communication`` with this config. The figure's numbers are not known to us.
"""

from experiments.configs.fedmr import base

LITE = {f"lite{rows}": dict(methods=dict(fedmr=base.FEDMR | dict(lite=rows))) for rows in (10, 50)}  # paper

get_config = base.study(
    arms=base.arms() | LITE,
    engine=dict(runs="separate"),  # to time each
    settings=base.SETTINGS,
    offline_settings=base.DIGITS_SETTINGS,
    offline=dict(rounds=20, seeds=(0,), training=dict(batch_size=64)),  # of which Lite takes 10 or 50
    smoke=["digits-P10C3"],
)
