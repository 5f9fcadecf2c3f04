"""Table 1 of FedUV (Son et al., CVPR 2024): five methods on three data sets with label skew and three with domains.

    python experiments/launch.py --config=experiments/configs/feduv/table1.py:offline --workdir=runs/uv1

* ``:full``: the published study, 135 runs. ``docs/data.md`` says how to get the data.
* ``:offline``: the same methods, skews and domains on digits and glyphs, with a small network; not comparable.
* ``:small``: 20 rounds of ``digits-0.01`` with one seed, minutes on two cores.
* ``:smoke``: two rounds of each data set at one alpha.

Not known: the normalisation of all data but STL10, which images of the domains are test images, the batch size of the
paper, and whether the cosine of the released code's learning rate made the table; ours has it.
"""

from experiments.configs.feduv import base
from fedjax_collapse.config.published import crossed

PAPER = {  # percent: STL10, CIFAR100, Tiny-ImageNet at both alphas, PACS, HAM10000, Office-Home
    "fedavg": (27.6, 68.5, 51.6, 58.3, 37.5, 40.2, 61.9, 73.7, 42.2),
    "fedprox": (26.5, 67.9, 50.2, 59.0, 37.1, 39.9, 59.1, 73.5, 41.9),
    "moon": (26.0, 70.0, 48.2, 60.5, 37.6, 42.4, 62.8, 72.9, 41.9),
    "freeze": (23.7, 72.1, 51.1, 59.3, 38.9, 42.6, 61.6, 73.2, 41.3),
    "feduv": (30.4, 68.5, 55.7, 59.1, 40.3, 43.2, 65.9, 73.9, 45.4),
}
SPREADS = {  # standard deviation over three runs, in the same places
    "fedavg": (1.6, 0.7, 1.7, 1.2, 0.9, 1.2, 0.6, 0.3, 1.1),
    "fedprox": (1.5, 0.8, 1.1, 1.0, 1.1, 1.0, 0.8, 0.3, 0.6),
    "moon": (1.3, 0.6, 1.2, 0.7, 1.8, 0.9, 1.6, 0.4, 0.4),
    "freeze": (1.5, 0.6, 1.5, 1.8, 1.9, 1.6, 0.5, 0.3, 1.8),
    "feduv": (1.4, 0.6, 1.0, 0.9, 0.8, 1.5, 0.9, 0.5, 1.0),
}
SKEWS = {f"{alpha}": base.label_skew(alpha) for alpha in base.ALPHAS}

get_config = base.study(
    arms=base.arms(),
    settings=crossed(base.data_sets("stl10", "cifar100", "tiny"), SKEWS)
    | base.data_sets("pacs", "ham10000", "officehome"),
    offline_settings=crossed(base.offline_sets("digits", "glyphs100"), SKEWS) | base.offline_sets("domains"),
    smoke=["digits-1.0", "glyphs100-1.0", "domains"],
    small="digits-0.01",
    **base.papers("Table 1", PAPER, SPREADS, columns=(0, 1, 2, 3, 6)),
)
