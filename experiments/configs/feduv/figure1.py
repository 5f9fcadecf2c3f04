"""Figure 1 of FedUV (Son et al., CVPR 2024): singular values of the global model's classifier, on CIFAR100.

    python experiments/launch.py --config=experiments/configs/feduv/figure1.py:offline --workdir=runs/uv_f1

* ``:full``: ResNet18, FedAvg, without skew and with alpha 0.01. ``docs/data.md`` says how to get the data.
* ``:offline``: the same on a hundred classes of glyphs, with a small network.
* ``:smoke``: two rounds of it.

The report draws those of a few rounds; of each evaluation they are in ``measurements.npz`` of each run
(``head_spectrum``, docs/analysis.md). Not known: the alpha of the figure, and its axes. Freeze and FedUV are our
addition.
"""

from experiments.configs.feduv import base
from fedjax_collapse.config.published import GLYPHS_100, crossed

SKEWS = {"iid": dict(partition=dict(name="iid")), "0.01": base.label_skew(0.01)}  # our choice

get_config = base.study(
    arms=base.arms("fedavg", "freeze", "feduv"),
    measurements=dict(head="head_spectrum"),
    settings=crossed(base.data_sets("cifar100"), SKEWS),
    offline_settings={f"glyphs-{name}": base.with_variance(skew, 100) for name, skew in SKEWS.items()},
    offline=dict(data=GLYPHS_100),
    smoke=["glyphs-iid"],
)
