"""Does fixing rank fix accuracy? Every method and strength, over data, heterogeneity and length of local training.

    python experiments/launch.py --config=experiments/configs/rank_and_accuracy.py --workdir=runs/rank

``experiments/notebooks/rank_and_accuracy.ipynb`` shows the results. Behind the file name: ``digits`` (1,797 real
handwritten digits of 8x8 pixels), ``wide`` (the same, 1,024 features instead of 128), ``mnist5k`` (5,000 of 28x28,
needs the extra ``mnist5k``), ``glyphs`` (synthetic characters of 16x16, with a convolutional network), ``all`` of them
(the default), or ``smoke``, two rounds of three arms. Ten clients, all of them in every round; seeds draw partitions
and initial weights, which all methods of a seed share. Published strengths are among those that are swept; nothing is
tuned. Measured after the last round.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from experiments.configs.label_skew import METHODS
from fedjax_collapse.config.published import GLYPHS

LEFT_OUT = ("fedper", "fedrep", "lg_fedavg", "fedvls_feddecorr")  # scored on each client's own classes; two at once
OTHERS = {
    "fedprox": base.methods(fedprox=dict(strength=0.01)),
    "moon": base.methods(moon=dict(strength=1.0)),
    "decov": base.methods(decov=dict(strength=0.1)),
    "vicreg": base.methods(vicreg=dict()),
    "scaffold": base.methods(scaffold=dict(normaliser="fednova")),
    "feddyn": base.methods(feddyn=dict(alpha=0.01)),
    "freeze": dict(training=dict(freeze="head"), head="orthogonal"),
}
SWEEP = {  # the published values and others around them
    "methods.feddecorr.strength": (0.01, 0.03, 0.1, 0.3, 1.0),
    "methods.feduv.uniformity": (0.05, 0.5, 5.0),
    "methods.fedmr.intra": (1e-5, 1e-3, 1e-1),
    "methods.decov.strength": (0.01, 0.1, 1.0),
}
DATA = {
    "digits": dict(data=dict(source="digits"), network=dict(name="mlp", hidden=(128, 128))),
    "mnist5k": dict(data=dict(source="mnist5k"), network=dict(name="mlp", hidden=(256, 128))),
    "wide": dict(data=dict(source="digits"), network=dict(name="mlp", hidden=(128, 1024))),
    "glyphs": dict(data=GLYPHS, network=dict(name="small_cnn", channels=(16, 32, 64))),
}
ALPHAS = {f"alpha {alpha:g}": (alpha, 5, 20) for alpha in (0.01, 0.05, 0.1, 0.5)}
REGIMES = {  # partition.alpha, training.epochs, rounds
    "digits": ALPHAS
    | {"alpha 100": (100.0, 5, 20), "alpha 0.1, 25 epochs": (0.1, 25, 20), "alpha 0.1, 100 rounds": (0.1, 5, 100)},
    "mnist5k": ALPHAS,
    "wide": {"alpha 0.1": (0.1, 5, 20)},
    "glyphs": {"alpha 0.1": (0.1, 5, 20)},
}


@base.variants("all", *DATA, "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds = (0, 1, 2)
    config.arms = {name: arm for name, arm in METHODS.items() if name not in LEFT_OUT} | OTHERS
    config.sweep = SWEEP
    config.settings = {
        f"{name} {regime}": dict(
            **DATA[name],
            partition=dict(alpha=alpha),
            training=dict(epochs=epochs),
            **dict.fromkeys(("rounds", "evaluate_every", "checkpoint_every"), rounds),
        )
        for name in DATA
        for regime, (alpha, epochs, rounds) in REGIMES[name].items()
        if arg in ("all", name)
    }
    config.measurements = dict(nc="neural_collapse", head="prediction_bias", probe="linear_probe")
    if arg == "smoke":
        config.seeds, config.rounds, config.evaluate_every, config.training.epochs = (0, 1), 2, 2, 1
        config.network = dict(name="mlp", hidden=(16, 16))
        config.arms = {name: METHODS[name] for name in ("fedavg", "feddecorr", "fedlc")}
        config.settings = {f"alpha {alpha}": dict(partition=dict(alpha=alpha)) for alpha in (0.1, 0.5)}
        config.sweep = {"methods.feddecorr.strength": (0.1, 1.0)}
