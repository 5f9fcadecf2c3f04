"""Does the rank collapse of mixed-rank adapters cost accuracy? Ten rounds from a small ViT trained on letters.

    python experiments/launch.py --config=experiments/configs/adapters/rank_collapse.py --workdir=runs/rank_collapse

``experiments/notebooks/adapters.ipynb`` shows the results. Needs the files of ``pretrain.py`` and the extra
``mnist5k``. Eight clients with adapters of rank 2, 2, 2, 2, 4, 4, 8 and 8 of queries and values, or all of one rank,
train 10 or 24 steps of plain SGD in a round; the scale is always 1. Behind the file name, ``all`` (the default) or one
of: ``shifted``, letters drawn as outlines, which the network has not seen, by Dirichlet 0.5; ``shards``, digits in two
shards of the sorted examples for each client; and ``dirichlet``, digits by Dirichlet 0.1. The head starts as it was
fitted, to the letters or to the frozen features of the digits, and is trained and averaged like the adapters. Seeds
draw the division and A. ``smoke`` is two rounds of ``shifted`` without the files.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from experiments.configs.adapters.pretrain import BACKBONE, DIGITS, HEAD, LETTERS, VIT
from fedjax_collapse.config.cells import merged
from fedjax_collapse.config.published import crossed

RANKS = (2, 2, 2, 2, 4, 4, 8, 8)
ADAPTERS = dict(rank=max(RANKS), alpha=float(max(RANKS)), layers=("query", "value"), one_scale=True)
RANK_2 = dict(network=dict(adapters=dict(rank=2, alpha=2.0)))
MIXED = dict(flexlora=dict(ranks=RANKS))
DECORR, RCL = dict(feddecorr=dict(strength=0.1)), dict(fedrcl=dict())  # published strengths
ARMS = {
    "fedit": dict(),  # all clients with rank 8, as in the next three
    "fedit_decorr": dict(methods=DECORR),
    "fedit_rcl": dict(methods=RCL),
    "ffa_lora": base.methods(ffa_lora=dict()),
    "fedex_lora": base.methods(fedex_lora=dict()),
    "fedit_rank2": RANK_2,
    "flexlora": dict(methods=MIXED),
    "flexlora_roots": base.methods(flexlora=dict(ranks=RANKS, roots=True)),
    "flexlora_decorr": dict(methods=MIXED | DECORR),
    "flexlora_rcl": dict(methods=MIXED | RCL),
    "raflora": base.methods(raflora=dict(ranks=RANKS)),
    "hetlora": base.methods(hetlora=dict(ranks=RANKS)),
}
DATA = {
    "shifted": dict(
        data=LETTERS | dict(domains=("outline",), train_size=4000, test_size=1000),
        network=dict(weights=BACKBONE),
        partition=dict(name="dirichlet", alpha=0.5),
    ),
    "shards": dict(partition=dict(name="pathological", classes_per_client=2, method="shards")),
    "dirichlet": dict(partition=dict(name="dirichlet", alpha=0.1, min_size=25)),
}
RATES = {f"lr {rate:g}": dict(training=dict(learning_rate=rate)) for rate in (0.5, 1.0)}
RATES["lr 0.2, 24 steps"] = dict(training=dict(learning_rate=0.2, steps=24, batch_size=25))


@base.variants("all", *DATA, "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.clients, config.rounds, config.checkpoint_every = (0, 1, 2, 3, 4), len(RANKS), 10, 10
    config.data, config.network = DIGITS, dict(**VIT, weights=HEAD, adapters=ADAPTERS)
    config.training.update(dict(steps=10, batch_size=16, momentum=0.0, weight_decay=0.0, clip_norm=1.0))
    config.arms, config.measurements = ARMS, dict(adapters="adapters")
    config.settings = crossed({name: own for name, own in DATA.items() if arg in ("all", name)}, RATES)
    if arg == "smoke":
        config.seeds, config.rounds = (0,), 2
        config.arms = {name: ARMS[name] for name in ("fedit", "flexlora", "flexlora_decorr", "raflora")}
        small = dict(data=dict(train_size=400, test_size=50), network=dict(weights=""))
        config.settings = {"shifted": merged(DATA["shifted"], small)}
