"""Federated learning without labels, where collapse is a matter of the loss: which terms keep the rank, and the probe.

    python experiments/launch.py --config=experiments/configs/rank/self_supervised.py --workdir=runs/self_supervised
    fedjax-collapse report runs/self_supervised --format=md

The quickstart's digits, clients and encoder at Dirichlet 0.1, five seeds, with a small projector and predictor and
random crops as views. ``no_predictor`` is SimSiam without a predictor; ``supervised`` is federated averaging with
labels, and the same crops. After the file name: ``smoke`` (two rounds of one seed). Small data: not comparable with
the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base, quickstart

HEAD = dict(name="siamese", hidden=128, dim=64)


@base.variants("", "smoke", start=quickstart.get_config)
def get_config(config: ConfigDict, arg: str) -> None:
    config.network.task, config.network.head = "self_supervised", HEAD
    config.training.augmentation = "views_of_digits"
    config.arms = {
        "simsiam": dict(),
        "no_predictor": dict(network=dict(head=HEAD | dict(predictor=False))),
        "byol": base.methods(byol=dict()),
        "fedema": base.methods(byol=dict(), fedema=dict()),
        "fedu2": base.methods(fedu2=dict(server="equal")),
        "ssd": base.methods(ssd=dict(distillation=0.0)) | dict(network=dict(head=HEAD | dict(predictor=False))),
        "feddecorr": base.methods(feddecorr=dict(strength=0.1)),
        "supervised": dict(network=dict(task="", head="linear")),
    }
    config.seeds, config.settings = (0, 1, 2, 3, 4), {}
    config.measurements = dict(probe="linear_probe")
    config.measure_every = config.rounds
    if arg == "smoke":
        config.rounds, config.seeds, config.measure_every = 2, (0,), 2
