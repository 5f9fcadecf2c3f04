"""Figure 3 of FedUV (Son et al., CVPR 2024): the training loss over rounds.

    python experiments/launch.py --config=experiments/configs/feduv/figure3.py:offline --workdir=runs/uv_f3

* ``:full``: FedAvg and FedUV on six data sets, label skew with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on digits, glyphs and four domains, with a small network.
* ``:smoke``: two rounds of digits.

The report draws it (Training loss), from ``train/task_loss`` in ``metrics.jsonl`` of each run. STL10 with alpha 0.01 is
one of the settings in the figure, by the text. Not known: the others (the six data sets are our reading), and the x
axis (ours: rounds).
"""

from experiments.configs.feduv import base

get_config = base.study(
    arms=base.arms("fedavg", "feduv"),  # paper
    evaluate_every=1,
    settings=base.data_sets(),
    offline_settings=base.offline_sets(),
    smoke=["digits"],
)
