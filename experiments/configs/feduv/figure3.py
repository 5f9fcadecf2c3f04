"""Figure 3 of FedUV (Son et al., CVPR 2024): the training loss over rounds.

    python experiments/launch.py --config=experiments/configs/feduv/figure3.py:offline --workdir=runs/uv_f3

* ``:full``: five methods on STL10 with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report draws it (Training loss), from ``train/task_loss`` in ``metrics.jsonl`` of each run. Not known: data set,
alpha and methods of the figure.
"""

from experiments.configs.feduv import base

get_config = base.study(
    __file__,
    arms=base.arms(),
    evaluate_every=1,
    full=dict(settings=base.data_sets("stl10")),
    offline=dict(settings=base.offline_sets("digits")),
    smoke=["digits"],
)
