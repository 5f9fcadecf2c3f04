"""Figure 4 of FedUV (Son et al., CVPR 2024): features of one class of STL10 at several clients, by t-SNE.

    python experiments/launch.py --config=experiments/configs/feduv/figure4.py:offline --workdir=runs/uv_f4

* ``:full``: FedAvg and FedUV on STL10 with alpha 0.01, as in the main text. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on 8x8 digits, with a small network.
* ``:smoke``: two rounds of it.

The report has the t-SNE, of all local models, from features that are saved every tenth round and after the last. CKA
and a linear probe compare them in numbers. Class 1 and clients chosen at random are in the figure; its methods and the
number of clients are not known.
"""

from experiments.configs.feduv import base

get_config = base.study(
    arms=base.arms("fedavg", "feduv"),
    watch="all",
    measurements=dict(features="features", cka="cka", probe="linear_probe"),
    measure_every=10,
    settings=base.data_sets("stl10"),
    offline_settings=base.offline_sets("digits"),
    smoke=["digits"],
)
