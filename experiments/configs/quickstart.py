"""FedAvg, FedDecorr and DeCov on the 1,797 real handwritten digits of scikit-learn, where collapse costs accuracy.

    python experiments/launch.py --config=experiments/configs/quickstart.py

Ten clients, Dirichlet 0.1, a multilayer perceptron of four hidden layers, 30 rounds of ten local epochs, five seeds,
each with its own partition. Behind the file name: ``smoke`` (two rounds of one seed of ``cnn``, to see that everything
works), ``cnn`` (a small convolutional network on one partition, in which a higher rank gains nothing), or ``search``
(the study by which the setting was chosen: docs/results.md).
A demonstration on small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.core.records import UserError

ARMS = {
    "fedavg": dict(),
    "feddecorr": dict(methods=dict(feddecorr=dict(strength=0.1, variant="official"))),
    "decov": dict(methods=dict(decov=dict(strength=0.1))),
}
SEARCHED = {  # hidden layers, partition.alpha, training.learning_rate, training.epochs
    "2 layers, alpha 0.05": (2, 0.05, 0.01, 5),
    "2 layers, alpha 0.1": (2, 0.1, 0.01, 5),
    "4 layers, alpha 0.05": (4, 0.05, 0.01, 5),
    "4 layers, alpha 0.1": (4, 0.1, 0.01, 5),
    "4 layers, alpha 0.2": (4, 0.2, 0.01, 5),
    "4 layers, alpha 0.5": (4, 0.5, 0.01, 5),
    "4 layers, alpha 0.1, learning rate 0.03": (4, 0.1, 0.03, 5),
    "4 layers, alpha 0.1, 10 epochs": (4, 0.1, 0.01, 10),  # the one that was chosen
}


def get_config(arg: str = "") -> ConfigDict:
    config = base.get_config()
    config.arms = ARMS
    if arg in ("", "search"):
        config.seeds = (0, 1, 2, 3, 4)
        config.network = dict(name="mlp", hidden=(128,) * 4)
        config.training.epochs = 10
    if arg == "search":
        config.evaluate_every = 10
        config.arms = ARMS | {"vicreg": dict(methods=dict(vicreg=dict()))}
        config.sweep = {"methods.feddecorr.strength": (0.01, 0.1), "methods.decov.strength": (0.01, 0.1, 1.0)}
        config.settings = {
            name: dict(
                network=dict(hidden=(128,) * layers),
                partition=dict(alpha=alpha),
                training=dict(learning_rate=learning_rate, epochs=epochs),
            )
            for name, (layers, alpha, learning_rate, epochs) in SEARCHED.items()
        }
    elif arg in ("cnn", "smoke"):
        config.seeds = (0, 1, 2)
        config.partition.seed = 0  # one partition for all seeds: the spread is that of initial weights and batch order
        config.arms = {name: ARMS[name] for name in ("fedavg", "feddecorr")}
        if arg == "smoke":
            config.rounds, config.seeds = 2, (0,)
    elif arg:
        raise UserError(f"quickstart.py:{arg}: expected nothing, smoke, cnn or search after the file name")
    return config
