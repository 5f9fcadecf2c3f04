"""What restores rank and what restores accuracy: FedAvg, FedDecorr, CCVR and both on 1,797 real handwritten digits.

    python experiments/launch.py --config=experiments/configs/quickstart.py

The digits of scikit-learn, ten clients, Dirichlet 0.05, a small convolutional network with BatchNorm, 20 rounds of five
local epochs, five seeds, each with its own partition. Behind the file name: ``smoke`` (two rounds of one seed, to see
that everything works), ``mnist`` (4,000 digits of 28x28 pixels, needs the extra ``mnist5k``), or ``search`` (the study
by which the setting was chosen: docs/results.md).
A demonstration on small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.core.records import UserError

_FEDDECORR = dict(feddecorr=dict(strength=0.1, variant="official"))
ARMS = {
    "fedavg": dict(),
    "feddecorr": dict(methods=_FEDDECORR),
    "ccvr": dict(methods=dict(ccvr=dict())),
    "feddecorr_ccvr": dict(methods=_FEDDECORR | dict(ccvr=dict())),
}
_CNN = dict(name="small_cnn", channels=(16, 32, 64))
_DIRICHLET = {alpha: dict(name="dirichlet", alpha=alpha) for alpha in (0.05, 0.1)}
SEARCHED = {  # network, partition, training.learning_rate, training.epochs
    "CNN": (_CNN, _DIRICHLET[0.05], 0.03, 5),
    "CNN, 10 epochs": (_CNN, _DIRICHLET[0.05], 0.03, 10),
    "CNN, learning rate 0.01": (_CNN, _DIRICHLET[0.05], 0.01, 5),
    "CNN, learning rate 0.1": (_CNN, _DIRICHLET[0.05], 0.1, 5),
    "CNN, alpha 0.1": (_CNN, _DIRICHLET[0.1], 0.03, 5),
    "CNN, two classes": (_CNN, dict(name="partially_disjoint", classes_per_client=2), 0.03, 5),
    "wide CNN": (_CNN | dict(channels=(32, 64, 128)), _DIRICHLET[0.05], 0.03, 5),
    "MLP": (dict(name="mlp", hidden=(128, 128), norm="batch"), _DIRICHLET[0.05], 0.03, 5),
    "deep MLP": (dict(name="mlp", hidden=(128,) * 4, norm="batch"), _DIRICHLET[0.05], 0.03, 5),
}


def get_config(arg: str = "") -> ConfigDict:
    if arg not in ("", "smoke", "mnist", "search"):
        raise UserError(f"quickstart.py:{arg}: expected nothing, smoke, mnist or search after the file name")
    config = base.get_config()
    if arg == "smoke":
        config.rounds, config.seeds, config.partition.seed = 2, (0,), 0
        config.arms = {name: ARMS[name] for name in ("fedavg", "feddecorr")}
        return config
    config.arms, config.seeds, config.rounds = ARMS, (0, 1, 2, 3, 4), 20
    config.network, config.partition.alpha, config.training.learning_rate = _CNN, 0.05, 0.03
    if arg == "mnist":
        config.data.source = "mnist5k"
    if arg == "search":
        config.evaluate_every = 20
        config.arms = {name: ARMS[name] for name in ("fedavg", "feddecorr", "ccvr")}
        config.settings = {
            name: dict(network=network, partition=partition, training=dict(learning_rate=rate, epochs=epochs))
            for name, (network, partition, rate, epochs) in SEARCHED.items()
        }
    return config
