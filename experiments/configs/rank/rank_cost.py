"""Does rank cost accuracy? FedDecorr and CCVR with a constant learning rate and where FedAvg needs less help.

    python experiments/launch.py --config=experiments/configs/rank/rank_cost.py --workdir=runs/rank_cost
    fedjax-collapse report runs/rank_cost --format=md

The quickstart's network, partition and learning rate, 20 rounds, batches of 32: the digits of scikit-learn with a
constant rate and with a cosine schedule, with rate 0.01 and less heterogeneity, also with much weight decay, and with
two classes a client, seeds 0 to 9. Behind the file name: ``glyphs`` (synthetic characters of 100 classes, three
seeds), ``mnist`` (4,000 digits of 28x28 pixels with a constant rate and with a cosine schedule, five seeds, needs the
extra ``mnist5k``), or ``smoke``, two rounds of one seed.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base, quickstart
from fedjax_collapse.config.published import GLYPHS_100

COSINE = dict(training=dict(schedule=dict(name="cosine")))
SLOW = dict(partition=dict(alpha=0.1), training=dict(learning_rate=0.01))
DIGITS = {
    "constant rate": dict(),
    "cosine": COSINE,
    "alpha 0.1, rate 0.01": SLOW,
    "alpha 0.1, rate 0.01, decay 0.01": SLOW | dict(training=SLOW["training"] | dict(weight_decay=0.01)),
    "two classes": dict(partition=dict(name="partially_disjoint", classes_per_client=2)),
}
MNIST = {name: DIGITS[name] | dict(data=dict(source="mnist5k")) for name in ("constant rate", "cosine")}
STUDIES = {  # settings and number of seeds
    "": (DIGITS, 10),
    "smoke": (DIGITS, 1),
    "glyphs": ({"glyphs, 100 classes": dict(data=GLYPHS_100)}, 3),
    "mnist": (MNIST, 5),
}


@base.variants(*STUDIES)
def get_config(config: ConfigDict, arg: str) -> None:
    config.arms, config.network, config.rounds, config.evaluate_every = quickstart.ARMS, quickstart.NETWORK, 20, 5
    config.partition.alpha, config.training.learning_rate = 0.05, 0.03
    config.settings, num_seeds = STUDIES[arg]
    config.seeds = tuple(range(num_seeds))
    if arg != "mnist":
        both = quickstart.ARMS["feddecorr"]["methods"] | quickstart.ARMS["ccvr"]["methods"]
        config.arms = quickstart.ARMS | dict(both=dict(methods=both))
    if arg == "smoke":
        config.rounds = config.evaluate_every = 2
