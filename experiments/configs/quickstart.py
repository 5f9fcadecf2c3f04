"""What restores rank and what restores accuracy: FedAvg, FedDecorr and CCVR on 1,797 real handwritten digits.

    python experiments/launch.py --config=experiments/configs/quickstart.py

The digits of scikit-learn, ten clients, Dirichlet 0.05, a small convolutional network with BatchNorm, 20 rounds of five
local epochs, five seeds, each with its own partition. Behind the file name: ``smoke`` (two rounds of one seed, to see
that everything works), ``mnist`` (4,000 digits of 28x28 pixels, needs the extra ``mnist5k``), or ``search`` and
``search_again`` (the studies by which the setting was chosen: docs/results.md).
A demonstration on small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.core.records import UserError

ARMS = {
    "fedavg": dict(),
    "feddecorr": dict(methods=dict(feddecorr=dict(strength=0.1, variant="official"))),
    "ccvr": dict(methods=dict(ccvr=dict())),
}
_CNN = dict(name="small_cnn", channels=(16, 32, 64))
_DIRICHLET = {alpha: dict(name="dirichlet", alpha=alpha) for alpha in (0.03, 0.05, 0.1)}
_TWO_CLASSES = dict(name="partially_disjoint", classes_per_client=2)
SEARCHED = {  # network, partition, training.learning_rate, training.epochs
    "CNN": (_CNN, _DIRICHLET[0.05], 0.03, 5),
    "CNN, 10 epochs": (_CNN, _DIRICHLET[0.05], 0.03, 10),
    "CNN, learning rate 0.01": (_CNN, _DIRICHLET[0.05], 0.01, 5),
    "CNN, learning rate 0.1": (_CNN, _DIRICHLET[0.05], 0.1, 5),
    "CNN, alpha 0.1": (_CNN, _DIRICHLET[0.1], 0.03, 5),
    "CNN, two classes": (_CNN, _TWO_CLASSES, 0.03, 5),
    "wide CNN": (_CNN | dict(channels=(32, 64, 128)), _DIRICHLET[0.05], 0.03, 5),
    "MLP": (dict(name="mlp", hidden=(128, 128), norm="batch"), _DIRICHLET[0.05], 0.03, 5),
    "deep MLP": (dict(name="mlp", hidden=(128,) * 4, norm="batch"), _DIRICHLET[0.05], 0.03, 5),
}
SEARCHED_AGAIN = {  # partition, training.epochs, training.batch_size; with the CNN and learning rate 0.03
    "alpha 0.05": (_DIRICHLET[0.05], 5, 32),
    "alpha 0.05, 10 epochs": (_DIRICHLET[0.05], 10, 32),
    "alpha 0.05, batch size 16": (_DIRICHLET[0.05], 5, 16),
    "alpha 0.03": (_DIRICHLET[0.03], 5, 32),
    "two classes": (_TWO_CLASSES, 5, 32),
}


def get_config(arg: str = "") -> ConfigDict:
    if arg not in ("", "smoke", "mnist", "search", "search_again"):
        raise UserError(
            f"quickstart.py:{arg}: expected nothing, smoke, mnist, search or search_again after the file name"
        )
    config = base.get_config()
    if arg == "smoke":
        config.rounds, config.seeds, config.partition.seed = 2, (0,), 0
        config.arms = {name: ARMS[name] for name in ("fedavg", "feddecorr")}
        return config
    config.arms, config.seeds, config.rounds = ARMS, (0, 1, 2, 3, 4), 20
    config.network, config.partition.alpha = _CNN, 0.05
    if arg == "mnist":
        config.data.source, config.training.learning_rate = "mnist5k", 0.03
    if arg == "search":
        config.evaluate_every = 20
        config.settings = {
            name: dict(network=network, partition=partition, training=dict(learning_rate=rate, epochs=epochs))
            for name, (network, partition, rate, epochs) in SEARCHED.items()
        }
    if arg == "search_again":
        config.evaluate_every, config.seeds, config.training.learning_rate = 10, tuple(range(10)), 0.03
        config.settings = {
            name: dict(partition=partition, training=dict(epochs=epochs, batch_size=batch_size))
            for name, (partition, epochs, batch_size) in SEARCHED_AGAIN.items()
        }
    return config
