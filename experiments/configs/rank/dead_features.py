"""When decorrelation kills features: FedDecorr at six strengths on networks without a normalisation and with two.

    python experiments/launch.py --config=experiments/configs/rank/dead_features.py --workdir=runs/dead
    fedjax-collapse report runs/dead --format=md

The digits of scikit-learn, ten clients, Dirichlet 0.1, a multilayer perceptron of four hidden layers whose ReLUs follow
their products directly (``none``), BatchNorm (``batch``) or GroupNorm (``group``), 30 rounds of ten local epochs, five
seeds, each with its own partition. Behind the file name: ``smoke``, two rounds of one seed at one strength.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.nn.layers import NORMS

STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@base.variants("", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.arms = {
        "fedavg": dict(),
        "feddecorr": base.methods(feddecorr=dict(strength=0.1, variant="official")),
        "decov": base.methods(decov=dict(strength=0.1)),
    }
    config.sweep = {"methods.feddecorr.strength": STRENGTHS}
    config.settings = {norm: dict(network=dict(norm=norm)) for norm in sorted(NORMS, reverse=True)}
    config.network = dict(name="mlp", hidden=(128,) * 4)
    config.training.epochs, config.seeds, config.evaluate_every = 10, (0, 1, 2, 3, 4), 10
    config.measurements = dict(received="received")
    if arg == "smoke":
        config.rounds, config.seeds, config.network.hidden, config.training.epochs = 2, (0,), (16,), 1
        config.sweep = {"methods.feddecorr.strength": (0.1,)}
