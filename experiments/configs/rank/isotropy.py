"""Isotropy instead of decorrelation: terms that make features normal, next to FedDecorr, VICReg and FedUV.

    python experiments/launch.py --config=experiments/configs/rank/isotropy.py --workdir=runs/isotropy
    python experiments/launch.py --config=experiments/configs/rank/isotropy.py:others --workdir=runs/isotropy_others
    fedjax-collapse report runs/isotropy --format=md

The quickstart's digits, clients and network at Dirichlet 0.05, 0.1 and 0.5, five seeds, each with its own partition.
No federated strength is published of SIGReg, Weak-SIGReg and VISReg, which have three each. After the file name:
``others`` (mnist5k and glyphs at 0.1, two seeds) or ``smoke`` (two rounds of one seed at one strength).
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base, quickstart

STRENGTHS = {"sigreg": (0.01, 0.03, 0.1), "weak_sigreg": (0.01, 0.03, 0.1), "visreg": (0.01, 0.1, 1.0)}
SKEWS = (0.05, 0.1, 0.5)


@base.variants("", "others", "smoke", start=quickstart.get_config)
def get_config(config: ConfigDict, arg: str) -> None:
    config.arms = {
        "fedavg": dict(),
        "feddecorr": base.methods(feddecorr=dict(strength=0.1)),
        "vicreg": base.methods(vicreg=dict()),
        "feduv": base.methods(feduv=dict()),
        **{name: base.methods(**{name: dict(strength=at[0])}) for name, at in STRENGTHS.items()},
    }
    config.sweep = {f"methods.{name}.strength": at for name, at in STRENGTHS.items()}
    config.measurements = dict(nc="neural_collapse", head="prediction_bias", probe="linear_probe")
    config.measure_every = config.rounds
    config.settings = {f"alpha_{alpha:g}": dict(partition=dict(alpha=alpha)) for alpha in SKEWS}
    if arg == "others":
        config.partition.alpha, config.seeds = 0.1, (0, 1)
        glyphs = dict(source="glyphs", train_size=5000, test_size=2000)
        config.settings = dict(mnist5k=dict(data=dict(source="mnist5k")), glyphs=dict(data=glyphs))
    if arg == "smoke":
        config.rounds, config.seeds, config.measure_every = 2, (0,), 2
        config.sweep = {f"methods.{name}.strength": at[:1] for name, at in STRENGTHS.items()}
        config.settings = {"alpha_0.1": dict(partition=dict(alpha=0.1))}
